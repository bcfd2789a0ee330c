"""`ell_cuda`: products with any number of rows of X."""
