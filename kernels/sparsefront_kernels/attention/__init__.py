"""Attention of sequences stored end to end, without padding."""

from sparsefront_kernels.attention.unpadded import attend_unpadded, attend_unpadded_reference

__all__ = ["attend_unpadded", "attend_unpadded_reference"]
