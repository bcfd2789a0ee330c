"""Swap kernels into a pruned network; every choice is recorded, with the reasons against other kernels."""
