"""Attention: of sequences of equal length, in any layout; of sequences stored end to end; of one token to a static cache."""

from sparsefront_kernels.attention.cached import attend_cached, attend_cached_reference
from sparsefront_kernels.attention.encoder import attend, attend_reference
from sparsefront_kernels.attention.unpadded import attend_unpadded, attend_unpadded_reference

__all__ = [
    "attend",
    "attend_cached",
    "attend_cached_reference",
    "attend_reference",
    "attend_unpadded",
    "attend_unpadded_reference",
]
