"""In what the products with prunable weights run: group `precision`, and which low precision dense networks are timed in."""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

DenseLow = Literal["fp8", "int8"]
FP8_CAPABILITY = (8, 9)  # of the first GPUs whose tensor cores multiply e4m3
INT8_CAPABILITY = (8, 0)


@settings_class()
class Precision:
    """Settings of group `precision`: changing them retrains nothing. What is no product with a prunable weight (attention,
    norms, residual additions), and a layer that no kernel can run so, stays in `measure.dtype`.

    Args:
        mode: none: all in `measure.dtype`; fp8: e4m3, with scales of activations per row, found as they run, and of weights per
            output; fp8_static: e4m3, the scale of each layer's activations from calibration data; int8: as fp8, in integers.
        batches: of training data that fp8_static calibrates by: the first that stage prune reads.
    """

    mode: Literal["none", "fp8", "fp8_static", "int8"] = "none"
    batches: Annotated[PositiveInt, Field(description="of calibration data for fp8_static")] = 16

    @property
    def is_low(self) -> bool:
        return self.mode != "none"

    @property
    def of_dense(self) -> DenseLow | None:
        """The low precision of the dense network beside: without calibration, as every run has it; None for none."""
        return None if self.mode == "none" else "int8" if self.mode == "int8" else "fp8"

    @property
    def calibrates(self) -> bool:
        """Whether it needs the activations of calibration data."""
        return self.mode == "fp8_static"

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Check that the device can run it; on a CPU references give the accuracy.

        Raises:
            InvalidSetting: a GPU whose tensor cores cannot, or weights in fp32 there.
        """
        if (low := self.of_dense) is not None and (why := unsupported_reason(low, device, dtype)) is not None:
            raise InvalidSetting("precision", self.mode, why)


def unsupported_reason(precision: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no product can run in a low precision there; None where one can, and on a CPU, where references compute it."""
    if device.type != "cuda":
        return None
    if dtype == torch.float32:
        return "goes with 16 bits on a GPU: add measure.dtype=fp16 or bf16"
    needed = INT8_CAPABILITY if precision == "int8" else FP8_CAPABILITY
    found = torch.cuda.get_device_capability(device)
    if found >= needed:
        return None
    name = torch.cuda.get_device_name(device)
    return f"needs a GPU of compute capability {needed[0]}.{needed[1]}, and {name} has {found[0]}.{found[1]}: precision=none"
