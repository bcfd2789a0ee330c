"""Block-sparse weights with 2:4 sparsity inside of blocks."""
