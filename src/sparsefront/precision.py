"""In what the products with prunable weights run: group `precision`."""

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.inference.precision import unsupported_reason
from sparsefront.measure.settings import DenseLow
from sparsefront.settings_class import settings_class


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
        if (why := unsupported_reason(self.mode, device, dtype)) is not None:
            raise InvalidSetting("precision", self.mode, why)
