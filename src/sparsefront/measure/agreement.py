"""How far two outputs are apart, and how far they may be."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting

# One product, kernel against the fp64 product of the same rounded weights. fp16 and bf16 leave room for the rounding of
# the output and fp32 accumulation; fp32 for another order of summation only.
PRODUCT_ERROR_LIMIT = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
TF32_ERROR_LIMIT = 1e-3  # an fp32 product on tensor cores that read 10 bits of mantissa

# A whole network, one way of running it against another: roundings of many layers pile up, wrong results lie far off.
NETWORK_ERROR_LIMIT = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def product_error_limit(dtype: torch.dtype) -> float:
    """The largest relative error of a right product: that of TF32 where PyTorch may round float32 products to it."""
    # get_float32_matmul_precision fails once fp32_precision was set; this one knows of either
    rounded = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return TF32_ERROR_LIMIT if rounded else PRODUCT_ERROR_LIMIT[dtype]


def network_error_limit(net: nn.Module) -> float:
    """What rounding may do to the outputs of a network: as in the coarsest dtype of its parameters."""
    dtypes = {parameter.dtype for parameter in net.parameters()}
    return max(limit for dtype, limit in NETWORK_ERROR_LIMIT.items() if dtype in dtypes)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| in fp64; inf where shapes differ or either holds NaN or infinity."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = actual.double(), expected.double()
    difference, scale = torch.linalg.vector_norm(actual - expected).item(), torch.linalg.vector_norm(expected).item()
    if difference == 0:
        return 0.0
    error = difference / scale if scale > 0 else float("inf")
    return error if error == error else float("inf")  # NaN is no agreement


def output_error(actual: object, expected: object) -> float:
    """The largest relative error among the floating tensors of two outputs of the same structure.

    Raises:
        InvalidSetting: there is no such tensor, so that any two outputs would agree.
        ValueError: they have different numbers of them.
    """
    pairs = zip(floating_tensors(actual), floating_tensors(expected), strict=True)
    return max(relative_error(one, other) for one, other in pairs)


def floating_tensors(output: object) -> list[Tensor]:
    """The floating tensors of what a network returns: a tensor, a mapping (Hugging Face), a dataclass or a sequence.

    Raises:
        InvalidSetting: there is none.
    """
    found = _floating_tensors(output)
    if not found:
        needed = "must return a floating-point tensor, or a mapping, dataclass, list or tuple that holds one"
        raise InvalidSetting("net", type(output).__name__, f"{needed}: by these its outputs are compared")
    return found


def _floating_tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif is_dataclass(output):
        parts = [getattr(output, field.name) for field in fields(output)]
    else:
        parts = list(output) if isinstance(output, list | tuple) else []
    return [tensor for part in parts for tensor in _floating_tensors(part)]
