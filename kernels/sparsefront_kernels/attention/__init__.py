"""Attention of sequences stored end to end, without padding, and of one new token per row to a static cache."""

from sparsefront_kernels.attention.cached import attend_cached, attend_cached_reference
from sparsefront_kernels.attention.unpadded import attend_unpadded, attend_unpadded_reference

__all__ = ["attend_cached", "attend_cached_reference", "attend_unpadded", "attend_unpadded_reference"]
