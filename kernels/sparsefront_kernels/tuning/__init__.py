"""Tuned launch parameters: storage and lookup."""

from sparsefront_kernels.tuning.launches import TunedLaunches
from sparsefront_kernels.tuning.store import TunedKernel, tuned_kernel

__all__ = ["TunedKernel", "TunedLaunches", "tuned_kernel"]
