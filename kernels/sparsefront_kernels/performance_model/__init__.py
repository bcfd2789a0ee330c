"""What a product should take on a GPU, from the top down: shape, sparsity and granularity against the device's rates."""

from sparsefront_kernels.performance_model.predict import predicted_us
from sparsefront_kernels.performance_model.product import Product

__all__ = ["Product", "predicted_us"]
