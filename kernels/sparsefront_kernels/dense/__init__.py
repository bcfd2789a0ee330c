"""Dense weights: the baseline for sparse families."""
