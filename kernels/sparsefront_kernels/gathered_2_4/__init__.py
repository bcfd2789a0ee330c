"""Tiles of outputs that share inputs, of which each output keeps two of every four.

Sparse products run on compute capability 9.0; elsewhere kernels of the gathered family run on dense panels.
"""
