"""What a product should take on a GPU, from the top down: shape, sparsity and granularity against the device's rates."""

from sparsefront_kernels.model.product import Product

__all__ = ["Product", "predicted_us"]


def predicted_us(kernel: str, product: Product, gpu: str) -> float | None:
    return None
