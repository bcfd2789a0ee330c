"""Uniform sparsity: the same number of kept weights or small blocks in every row."""
