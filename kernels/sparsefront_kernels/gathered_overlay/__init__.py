"""Tiles with shared inputs, and single weights beside them: tile-wise sparsity with an element overlay (TEW)."""
