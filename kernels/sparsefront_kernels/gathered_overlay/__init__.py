"""Tiles with shared inputs plus single weights: tile-wise sparsity with an element overlay (TEW)."""
