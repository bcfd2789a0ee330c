"""Tiles of outputs that keep the same inputs, of which every output keeps two of every four.

Sparse products run on compute capability 9.0; elsewhere kernels of the gathered family run on dense panels.
"""
