"""n weights kept of every m consecutive inputs."""

from sparsefront_kernels.n_m.entries import ENTRIES
from sparsefront_kernels.n_m.format import NMFormat

FORMAT = NMFormat

__all__ = ["ENTRIES", "FORMAT"]
