"""The operator benchmark: `python -m sparsefront_kernels.bench`, on a GPU."""
