"""Metrics of a network: accuracy, latency, memory, flops and sparsity."""
