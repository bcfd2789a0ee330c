"""Layer-wise Optimal Brain Surgeon: which weights of a matrix to prune, and how the others compensate.

For a layer Y = X W^T, a change D of W has the squared output error trace(D H D^T) / 2 with H = 2 X^T X: all rows of W
share one Hessian [K, K]. `sweep` works through it as SparseGPT does.
"""
