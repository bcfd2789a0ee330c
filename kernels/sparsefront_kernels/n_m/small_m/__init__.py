"""`n_m_small_m`: products with up to 64 rows of X."""
