"""`csr_cuda`: our own product beside cuSPARSE's."""
