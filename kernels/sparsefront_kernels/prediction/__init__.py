"""Predicted latency of a sparse product and of the dense one: interpolated between measurements, or by the performance model."""

from sparsefront_kernels.prediction.predictor import LatencyPredictor, latency_predictor
from sparsefront_kernels.prediction.table import LatencyTable, PredictedLatency, latency_table

__all__ = ["LatencyTable", "PredictedLatency", "LatencyPredictor", "latency_table", "latency_predictor"]
