"""Sparsity patterns: which weights live or die together, and where the survivors may be."""
