"""Pruning: make masks from scores, and apply them while weights train."""
