"""`gathered_quack`: 16-bit products by QuACK's grouped GEMM, which gathers A along K; the package is optional."""
