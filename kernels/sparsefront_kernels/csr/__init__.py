"""Unstructured sparsity (compressed sparse rows)."""
