"""What is done element by element between products: the change of layout, and an epilogue that no product fused."""

from sparsefront_kernels.pointwise.op import contiguous_transpose, epilogue, transposed

__all__ = ["contiguous_transpose", "epilogue", "transposed"]
