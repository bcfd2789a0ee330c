"""A kernel in one of its layouts: what tests that go through all layouts are parametrized by."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sparsefront_kernels import KernelEntry, Problem, entries, labeled
from sparsefront_kernels.blocked import sm90 as blocked
from sparsefront_kernels.cuda import thread_per_output, thread_per_row
from sparsefront_kernels.gathered import indexed, simt, sm90, small_m
from sparsefront_kernels.n_m import mma
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.tuning.launches import TunedLaunches
from torch import Tensor


def _possible(module: Any, described: Any, **settings: Any) -> list[Any]:
    every = (replace(launch, **settings) for launch in module.SPACE)
    return [launch for launch in every if module.possible(described, launch)]


SPACES = {  # kernel -> (packed weight, described problem) -> every launch that it can be given
    "gathered_sm90": lambda packed, described: sm90.SPACE,
    "gathered_simt": lambda packed, described: simt.launch_space(packed.width),
    "gathered_indexed": lambda packed, described: indexed.SPACE,
    "gathered_small_m": lambda packed, described: _possible(small_m, described),
    "blocked_sm90": lambda packed, described: blocked.SPACE,
    "blocked_2_4_sm90": lambda packed, described: blocked.SPACE,
    "n_m_mma": lambda packed, described: _possible(mma, described, rows=mma.rows_of(described)),
    "n_m_small_m": lambda packed, described: _possible(thread_per_output, described),
    "ell_small_m": lambda packed, described: _possible(thread_per_output, described),
    "n_m_sm90": lambda packed, described: _possible(thread_per_row, described),
    "ell_sm90": lambda packed, described: _possible(thread_per_row, described),
    "csr_sm90": lambda packed, described: _possible(thread_per_row, described),
}


@dataclass(frozen=True)
class InLayout:
    """Has what the kernel has, and runs it in the layout."""

    kernel: KernelEntry
    layout: str

    @property
    def name(self) -> str:
        """The kernel's label."""
        return self.kernel.label(self.layout)

    @property
    def tunable(self) -> TunedLaunches | None:
        return self.kernel.tunable_in(self.layout)

    def launches(self, packed: Any, problem: Problem) -> list[Any]:
        """Its whole space where that is known, else the candidates of tuning."""
        if (space := SPACES.get(self.kernel.name)) is None:
            return list(self.tunable.candidates(packed, problem))
        return list(space(packed, self.tunable.describe(packed, problem)))

    def run(self, x: Tensor, packed: Any, bias: Tensor | None = None, **epilogue: Any) -> Tensor:
        return self.kernel.run(x, packed, bias, layout=self.layout, **epilogue)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


def in_layout(label: str) -> InLayout:
    """The kernel and layout of a label; without a layout in it, the kernel's first one."""
    kernel, layout = labeled(label)
    return InLayout(kernel, layout or kernel.layouts[0])


def every_layout(kernels: Iterable[KernelEntry] = entries()) -> list[InLayout]:
    """Each kernel in each layout that it takes, in the registry's order."""
    return [InLayout(kernel, layout) for kernel in kernels for layout in kernel.layouts]


def is_tried_here(kernel: InLayout) -> bool:
    """Without a GPU two layouts tell of all, and Triton's interpreter rounds nothing to TF32."""
    ends = (kernel.layouts[0], kernel.layouts[-1])
    return torch.cuda.is_available() or (kernel.layout in ends and kernel.dtype_name != "tf32")


def assert_names_wrong_operands(kernel: InLayout, x: Tensor, packed: Any, n: int) -> None:
    """Of operands that do not fit those that do, of a weight of `n` outputs, the error names the wrong one."""
    inputs = 0 if kernel.layout in X_FEATURE_MAJOR else 1
    wrong: dict[str, tuple] = {
        "x must be": (torch.cat([x, x], dim=inputs), None),
        "x is torch.float64": (x.double(), None),
        "bias must be a float": (x, x.new_ones(n + 1)),
        "bias must be a float .* not torch.int": (x, x.new_ones(n).int()),
    }
    for message, (x_of, bias) in wrong.items():
        with pytest.raises(ValueError, match=message):
            kernel.run(x_of, packed, bias)
    if kernel.fuses_epilogue:
        with pytest.raises(ValueError, match="'swish' is not one of none, relu"):
            kernel.run(x, packed, None, activation="swish")
        sums = x.new_ones(x.shape[1 - inputs], n).double()
        for residual in (x.new_ones(1, 1), sums.t() if kernel.layout in Y_FEATURE_MAJOR else sums):
            with pytest.raises(ValueError, match="the residual must be"):
                kernel.run(x, packed, None, residual=residual)
