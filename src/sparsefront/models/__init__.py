"""Models: one file each, with settings, builder, and the layers that may be pruned."""
