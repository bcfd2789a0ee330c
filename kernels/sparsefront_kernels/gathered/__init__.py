"""Tiles of outputs that share a list of kept inputs: tile-wise and vector-wise sparsity."""
