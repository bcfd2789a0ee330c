"""The performance model: predicted latency of a product from shape, sparsity, granularity and the device's rates."""

from sparsefront_kernels.performance_model.predict import predicted_us
from sparsefront_kernels.performance_model.product import Product

__all__ = ["Product", "predicted_us"]
