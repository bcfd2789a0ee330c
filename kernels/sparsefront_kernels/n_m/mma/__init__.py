"""`n_m_mma`: products with up to 64 rows of X by tensor cores, for n of every 4."""
