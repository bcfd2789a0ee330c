"""Precision of a network's products: 16 bits, fp8 or int8; device support and calibration."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from sparsefront_kernels import KernelEntry, entries
from sparsefront_kernels.quantized.quantize import LARGEST
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.measure.settings import DenseLow
from sparsefront.networks import before_forward, first_argument
from sparsefront.settings_class import Batches, settings_class

PRECISIONS = {
    "none": "all in the network's dtype",
    "fp8": "weights e4m3 with a scale per output, activations e4m3 with a scale per row that is found at run time",
    "fp8_static": "likewise, but one scale for all activations of a layer, from calibration",
    "int8": "weights int8 with a scale per output, activations int8 with a scale per row that is found at run time, or, for few "
    "rows, in 16 bits",
}
CAPABILITY = {"fp8": (8, 9), "int8": (8, 0)}  # minimum compute capability
MULTIPLE = 16  # N and K of 8-bit products must be multiples of it
CONVOLUTION = "convolutions stay in 16 bits"
HEAD_IN_16_BITS = "the head, which gives the network's output, stays in 16 bits"


@dataclass(frozen=True)
class Precision:
    """Precision of Linears; attention, norms and convolutions are not affected.

    Args:
        name: one of PRECISIONS.
        calibration: for fp8_static, Linear -> largest absolute value of its inputs, from `activation_amax`.
    Raises:
        InvalidSetting: an unknown name; or a calibration for another precision than fp8_static.
    """

    name: str = "none"
    calibration: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise InvalidSetting("precision", self.name, f"is one of {', '.join(PRECISIONS)}")
        if self.calibration and self.name != "fp8_static":
            raise InvalidSetting(
                "calibration", f"of {len(self.calibration)} layers", "is for precision=fp8_static alone"
            )

    @property
    def is_low(self) -> bool:
        """Whether anything is quantized."""
        return self.name != "none"

    @property
    def of_kernels(self) -> str:
        """Its name in the kernel package: none, fp8 or int8."""
        return self.name.removesuffix("_static")

    def kernels(self) -> tuple[KernelEntry, ...]:
        """All kernels of this precision; empty for 16 bits."""
        return entries(self.of_kernels) if self.is_low else ()

    def x_scale(self, layers: Iterable[str]) -> float | None:
        """The static input scale of Linears that are one product; None where it is computed at run time."""
        if self.name != "fp8_static":
            return None
        return max(self.calibration[name] for name in layers) / LARGEST["fp8"]

    def explain_16_bits(self, layers: Iterable[str], shape: tuple[int, int], dtype: torch.dtype) -> str | None:
        """Why Linears that are one product must stay in 16 bits, or None.

        Args:
            shape: [N, K] of the product.
            dtype: of its weight.
        """
        n, k = shape
        if n % MULTIPLE or k % MULTIPLE:
            return f"its weight is [N, K] = [{n}, {k}]: {self.name} needs multiples of {MULTIPLE}"
        if dtype == torch.float64:
            return "float64 is not quantized"
        if self.name != "fp8_static":
            return None
        amax = {name: self.calibration.get(name, math.nan) for name in layers}
        missing = [name for name, largest in amax.items() if not 0 < largest < math.inf]
        return f"calibration has no finite range for {', '.join(missing)}" if missing else None


IN_16_BITS = Precision()


def explain_refusal(precision: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why networks of this dtype cannot run in a precision on a device, or None. A CPU runs references, for accuracy alone.

    Args:
        dtype: of the parts that are not quantized.
    """
    if precision == "none" or device.type != "cuda":
        return None
    if dtype not in (torch.float16, torch.bfloat16):
        return f"runs beside fp16 or bf16 on a GPU, not {str(dtype).removeprefix('torch.')}: set measure.dtype"
    needed = CAPABILITY[Precision(precision).of_kernels]
    there = torch.cuda.get_device_capability(device)
    if there < needed:
        has, least = (".".join(map(str, version)) for version in (there, needed))
        return f"needs a GPU of compute capability {least} or more, not {has} of {torch.cuda.get_device_name(device)}"
    return None


def require_supported(precision: Precision, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InvalidSetting with key `precision` if `explain_refusal` gives a reason."""
    reason = explain_refusal(precision.name, device, dtype)
    if reason is not None:
        raise InvalidSetting("precision", precision.name, reason)


@settings_class()
class PrecisionChoice:
    """Settings of group `precision`; changing them retrains nothing. Only products with weights are quantized: attention, norms,
    residual additions and layers without such a kernel stay in `measure.dtype`.

    Args:
        mode: none: all in `measure.dtype`; fp8: e4m3, with dynamic activation scales per row and weight scales per output
            channel; fp8_static: e4m3, with one activation scale per layer from calibration data; int8: as fp8, in integers.
        batches: of training data for the calibration of fp8_static: the first that stage prune reads.
    """

    mode: Literal["none", "fp8", "fp8_static", "int8"] = "none"
    batches: Annotated[Batches, Field(description="of calibration data for fp8_static")] = 16

    @property
    def is_low(self) -> bool:
        return self.mode != "none"

    @property
    def of_dense(self) -> DenseLow | None:
        """Low precision of the dense baseline, without calibration, so that all runs share it; None for none."""
        return None if self.mode == "none" else "int8" if self.mode == "int8" else "fp8"

    @property
    def calibrates(self) -> bool:
        """Whether it needs the activations of calibration data."""
        return self.mode == "fp8_static"

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Check that the device supports it; a CPU runs references.

        Raises:
            InvalidSetting: a GPU without such tensor cores, or weights in fp32 on a GPU.
        """
        why = explain_refusal(self.mode, device, dtype)
        if why is not None:
            raise InvalidSetting("precision", self.mode, why)


def network_dtype(net: nn.Module) -> torch.dtype:
    """The first 16-bit dtype among the weights of Linears, else the first of their dtypes, else float32."""
    dtypes = [module.weight.dtype for module in net.modules() if isinstance(module, nn.Linear)]
    halves = [dtype for dtype in dtypes if dtype in (torch.float16, torch.bfloat16)]
    return next(iter(halves or dtypes), torch.float32)


@torch.no_grad()
def activation_amax(net: nn.Module, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The largest absolute input value of each Linear, over batches.

    Args:
        net: in eval mode.
        batches: keyword arguments of the net, on its device.
    Returns:
        Linear -> largest absolute value, infinite or NaN if an activation was; Linears that are not called are absent.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_argument(args, kwargs)
        if x.numel():
            amax = x.detach().abs().amax().float()
            seen[name] = torch.maximum(seen[name], amax) if name in seen else amax

    linears = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    with before_forward(linears, note):
        for batch in batches:
            net(**batch)
    return {name: amax.item() for name, amax in seen.items()}


# Reference of the network in the same precision, by quantizing and dequantizing the same operands.


@contextmanager
def emulation(net: nn.Module) -> Iterator[None]:
    """Make every low-precision layer multiply its quantized operands in float32 inside the context."""
    layers = [part for part in net.modules() if isinstance(part, SparseLayer) and part.precision != "none"]
    for layer in layers:
        layer.emulates = True
    try:
        yield
    finally:
        for layer in layers:
            del layer.emulates
