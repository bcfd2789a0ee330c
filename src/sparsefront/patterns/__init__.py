"""Sparsity patterns: which weights are kept or pruned together, and where the survivors may be."""
