"""`ell_small_m`: products with up to 16 rows of X."""
