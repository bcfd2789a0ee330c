"""Is a fused product's output right? Compared in fp64 with its masked weight, epilogue included."""

import math

import torch
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from torch import Tensor, nn

from sparsefront.inference.fusion.layout import in_layout
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.measure.agreement import product_error_limit

CPU_ROWS = 64  # M on a CPU: references do the same for every row
CHUNK_ROWS = 8192  # of the fp64 product at a time
SEPARATE = 2.0  # times the limit where an epilogue follows the product, with roundings of its own


class FusedCorrectnessCheck:
    """Random operands in the layouts of a product's place, and the largest relative error that passes.

    Memory for outputs holds NaN before a candidate is called, so that it cannot leave elements unwritten.
    """

    def __init__(self, spec: ProductSpec, m: int, *, feature_major: bool) -> None:
        weight = spec.weight.weight
        generator = torch.Generator(weight.device).manual_seed(0)
        n, k = weight.shape
        m = min(m, CPU_ROWS) if weight.device.type == "cpu" else m
        options = {"generator": generator, "device": weight.device, "dtype": weight.dtype}
        self.spec = spec
        self.x = in_layout(torch.randn(m, k, **options), feature_major=feature_major and spec.x_stream)
        self.residual = None
        if spec.residual:
            self.residual = in_layout(torch.randn(m, n, **options), feature_major=feature_major and spec.y_stream)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def limit(self) -> float:
        separate = self.spec.activation != "none" or self.spec.residual
        return product_error_limit(self.x.dtype) * (SEPARATE if separate else 1.0)

    @torch.no_grad()
    def evaluate(self, candidate: nn.Module) -> tuple[float, str | None]:
        """The relative error, and why the candidate must not be used or None."""
        spoiled = self.x.new_full((len(self.x), len(self.spec.weight.weight)), math.nan)
        del spoiled
        error = self._error(candidate(*self.operands))
        if error <= self.limit:
            return error, None
        return error, f"relative error {error:.1e} against the fp64 product, more than {self.limit:.0e}"

    def _error(self, y: Tensor) -> float:
        weight = self.spec.weight.weight.double()
        bias = None if self.spec.weight.bias is None else self.spec.weight.bias.double()
        if y.shape != (len(self.x), len(weight)):
            return math.inf
        difference, scale = 0.0, 0.0
        for first in range(0, len(self.x), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            expected = torch.nn.functional.linear(self.x[part].double(), weight, bias)
            expected = ACTIVATIONS[self.spec.activation](expected)
            if self.residual is not None:
                expected = expected + self.residual[part].double()
            difference += (y[part].double() - expected).square().sum().item()
            scale += expected.square().sum().item()
        if difference == 0:
            return 0.0
        error = math.sqrt(difference / scale) if scale > 0 else math.inf
        return math.inf if math.isnan(error) else error
