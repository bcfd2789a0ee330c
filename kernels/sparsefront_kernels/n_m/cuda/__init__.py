"""`n_m_cuda`: products with any number of rows of X on CUDA cores."""
