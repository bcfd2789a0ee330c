"""Inspect and clean the cache folder: `python -m sparsefront.cache`."""
