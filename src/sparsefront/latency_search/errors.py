"""The error that pruning a layer causes on calibration inputs."""

import torch
from torch import Tensor


def output_error(weight: Tensor, mask: Tensor, hessian: Tensor) -> float:
    """||X (W - W * M)^T||^2 / ||X W^T||^2: what of a layer's output goes with the pruned weights, in [0, 1] for most.

    Args:
        weight: float32 [N, K].
        mask: bool [N, K], True = keep.
        hessian: X^T X of the layer's inputs X [rows, K], times any number: float32 [K, K].
    Source: Kurtic et al., "ZipLM: Inference-Aware Structured Pruning of Language Models", 2023, which compares layers of a
        network by the relative error of their outputs.
    """
    gone = weight.masked_fill(mask, 0.0)
    total = _energy(weight, hessian)
    return float(_energy(gone, hessian) / total) if total > 0 else 0.0


@torch.no_grad()
def _energy(weight: Tensor, hessian: Tensor) -> Tensor:
    """||X W^T||^2."""
    return ((weight @ hessian) * weight).sum(dtype=torch.float64)
