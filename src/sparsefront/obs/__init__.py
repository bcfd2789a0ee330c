"""Optimal Brain Surgeon, layer by layer: which weights of a matrix can go, and how the others make up for them.

For a layer Y = X W^T the squared error of the output under a change D of W is trace(D H D^T) / 2 with H = 2 X^T X: one
Hessian [K, K] that all rows of W share. `sweep` works through it as SparseGPT does.
"""
