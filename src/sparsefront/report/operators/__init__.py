"""What the operator benchmark measured, as pictures and a table."""
