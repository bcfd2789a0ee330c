"""The performance model: predicted latency of a product from shape, sparsity, granularity and what is known of the GPU."""

from sparsefront_kernels.performance_model.kernel_latency import Prediction, predict
from sparsefront_kernels.performance_model.model import PerformanceModel, PredictedSpeedup, performance_model
from sparsefront_kernels.performance_model.product import Product

__all__ = ["PerformanceModel", "PredictedSpeedup", "Prediction", "Product", "performance_model", "predict"]
