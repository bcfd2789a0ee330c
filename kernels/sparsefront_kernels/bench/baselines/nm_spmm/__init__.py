"""NM-SpMM as a peer: its kernels, built from a checkout that the user names, on balanced vectors of 32 outputs."""
