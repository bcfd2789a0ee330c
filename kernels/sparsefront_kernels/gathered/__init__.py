"""Tile-wise and vector-wise sparsity: tiles of outputs that share a list of kept inputs."""
