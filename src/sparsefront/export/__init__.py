"""A pruned network on disk: plain weights that any tool loads, and beside them the masks and the compressed layers."""
