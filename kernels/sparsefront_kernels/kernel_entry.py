"""One kernel of the registry: what it supports, how it packs a weight, how it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sparsefront_kernels.convolution import Convolving
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning.tunable import Tunable


class UnsupportedProblem(ValueError):
    """A kernel does not support what it was asked for; the message says which kernel and why."""


def as_stored(stored: SparseFormat) -> SparseFormat:
    """The `pack` of a kernel that reads the format directly."""
    return stored


def all_supported(stored: SparseFormat, problem: Problem) -> str | None:
    """The `unsupported` of a kernel that supports everything its family can hold."""
    return None


@dataclass(frozen=True)
class KernelEntry:
    """One way to multiply by a weight of one family.

    Use: move the format to the problem's device and dtype, `packed = entry.pack(format)` once, then
    `y = entry.run(x, packed, bias)` as often as needed.

    Args:
        name: unique, for configurations and reports.
        family: the storage family it reads.
        run: (x, packed, bias or None) -> y, in the layouts of `problem.LAYOUTS`. x may have any strides; y's strides
            are the kernel's own choice. bias: [N]. Where `fuses_epilogue`, also with the keywords `activation` (a name
            of `common.epilogue.ACTIVATIONS`) and `residual` (of y's shape and dtype):
            y = activation(x · Wᵀ + bias) + residual.
        unsupported: (format, problem) -> why this kernel does not support them, or None; `unsupported_reason` calls it after the
            checks that all kernels share.
        pack: format -> what `run` reads, on the format's device. Packing and sorting happen here, untimed.
        requires_cuda: True where it is a GPU kernel (Triton's interpreter may still run it on a CPU, for tests).
        is_reference: True for plain PyTorch that runs on any device: the reference for tests, and the path on a CPU.
        layout: of X and Y, one of `problem.LAYOUTS`.
        dtype_name: what it computes in where the dtype of x does not say so: "tf32" for float32 operands whose products
            are rounded to TF32.
        fuses_epilogue: whether `run` takes `activation` and `residual`.
        tunable: its launch parameters, or None where there is nothing to tune.
        fastest_from: rows from which it is faster than those behind it in its family, as measured; `best_kernel` asks where no
            performance model knows them.
        convolving: how it reads images, where it can; else convolutions copy what output pixels see into rows of X first.
    """

    name: str
    family: str
    run: Callable[[Tensor, Any, Tensor | None], Tensor]
    unsupported: Callable[[SparseFormat, Problem], str | None] = all_supported
    pack: Callable[[SparseFormat], Any] = as_stored
    requires_cuda: bool = False
    is_reference: bool = False
    layout: str = "row_major"
    dtype_name: str | None = None
    fuses_epilogue: bool = False
    tunable: Tunable | None = None
    fastest_from: int = 1
    convolving: Convolving | None = None

    def computes_in(self, dtype_name: str) -> bool:
        """Whether its products are of this dtype (fp16, bf16, fp32, tf32), as far as the entry says.

        One that rounds to TF32 does not compute in fp32, nor one that does not say so in TF32.
        """
        return self.dtype_name == dtype_name if self.dtype_name or dtype_name == "tf32" else True

    def unsupported_reason(self, stored: SparseFormat, problem: Problem) -> str | None:
        """Why this kernel does not support the weight and the problem, or None where it does.

        The format is taken as if it were already on the problem's device and in its dtype.
        """
        if stored.family != self.family:
            return f"the weight is stored as {stored.family}, not {self.family}"
        if (problem.n, problem.k) != stored.shape:
            return f"the weight is [N, K] = {list(stored.shape)}, the problem asks for {[problem.n, problem.k]}"
        if problem.layout != self.layout:
            return f"takes {self.layout} activations, not {problem.layout}"
        if not problem.dtype.is_floating_point:
            return f"takes floating point, not {problem.dtype}"
        if problem.device.type == "meta":
            return "cannot run on the meta device, which holds no data"
        return self.unsupported(stored, problem)

    def supports(self, stored: SparseFormat, problem: Problem) -> bool:
        """Whether this kernel can multiply by this weight."""
        return self.unsupported_reason(stored, problem) is None

    def require_supported(self, stored: SparseFormat, problem: Problem) -> None:
        """Raise UnsupportedProblem with this kernel's name and the reason where `unsupported_reason` gives one."""
        if reason := self.unsupported_reason(stored, problem):
            raise UnsupportedProblem(f"{self.name}: {reason}")
