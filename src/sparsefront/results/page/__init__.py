"""Self-contained HTML pages of a run and of a comparison."""
