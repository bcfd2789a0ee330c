"""Launch parameters that were measured: where they are kept, and how they are found again."""

from sparsefront_kernels.tuning.launches import TunedLaunches
from sparsefront_kernels.tuning.store import TunedKernel, tuned_kernel

__all__ = ["TunedKernel", "TunedLaunches", "tuned_kernel"]
