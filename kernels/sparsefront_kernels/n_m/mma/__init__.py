"""`n_m_mma`: products with up to 64 rows of X by tensor cores, for 1:4, 2:4 and 3:32."""
