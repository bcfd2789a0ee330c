"""What is done element by element between products: the change of layout, and an epilogue that no product fused."""

from sparsefront_kernels.pointwise.op import epilogue, transposed

__all__ = ["epilogue", "transposed"]
