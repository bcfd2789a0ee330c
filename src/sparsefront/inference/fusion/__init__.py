"""Rewrite encoder and decoder blocks as graphs of fused products and norms, with a feature-major residual stream if faster."""
