"""Block-sparse weights (BSR)."""
