"""A kernel in one of its layouts: what tests that go through all layouts are parametrized by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparsefront_kernels import KernelEntry, entries, labeled
from sparsefront_kernels.tuning.launches import Tunable
from torch import Tensor


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
    def tunable(self) -> Tunable | None:
        return self.kernel.tunable_in(self.layout)

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
