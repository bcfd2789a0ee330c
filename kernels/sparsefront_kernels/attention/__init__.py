"""Attention within sequences: of equal length, on activations of any layout; or stored end to end, without padding."""

from sparsefront_kernels.attention.encoder import attend, attend_reference
from sparsefront_kernels.attention.unpadded import attend_unpadded, attend_unpadded_reference

__all__ = ["attend", "attend_reference", "attend_unpadded", "attend_unpadded_reference"]
