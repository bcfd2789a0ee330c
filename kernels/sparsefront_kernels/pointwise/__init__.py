"""Element-wise operations between products: the change of layout, and the separate epilogue."""

from sparsefront_kernels.pointwise.op import contiguous_transpose, epilogue, transposed

__all__ = ["contiguous_transpose", "epilogue", "transposed"]
