"""`gathered_skinny`: products with up to 64 rows of X."""
