"""One kernel of the registry: what it supports, how it packs a weight, how it runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Convolving, Problem, label
from sparsefront_kernels.tuning.launches import Tunable

if TYPE_CHECKING:
    from sparsefront_kernels.quantized.quantize import Quantized


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
        product: what `run` calls: (x, packed, bias or None) -> y, with the keyword `layout` where it takes several.
        unsupported: (format, problem) -> why this kernel does not support them, or None; `unsupported_reason` calls it after the
            checks that all kernels share.
        pack: format -> what `run` reads in any layout, on the format's device. Packing and sorting happen here, untimed.
        requires_cuda: True where it is a GPU kernel (Triton's interpreter may still run it on a CPU, for tests).
        is_reference: True for plain PyTorch that runs on any device: the reference for tests, and the path on a CPU.
        layouts: of X and Y that it takes, in the order of `problem.LAYOUTS`.
        dtype_name: what it computes in where the dtype of x does not say so: "tf32" for float32 operands whose products
            are rounded to TF32.
        fuses_epilogue: whether `run` takes `activation` and `residual`.
        tunable: its launch parameters, or None where there is nothing to tune.
        row_x_tunable: those where X is row-major, for a kernel that then reads it in another way; None: the same.
        fastest_from: rows from which it is faster than those behind it in its family, as measured; `best_kernel` asks where no
            performance model knows them.
        convolving: how it reads images where it runs row-major, if it can; else convolutions copy what output pixels see
            into rows of X first.
        precision: "none": it multiplies X and W as they come. "fp8" or "int8": it packs W in that precision, and takes X in 16
            or 32 bits, which it quantises with a scale per row, or as a `Quantized`.
        takes_scales: of a `Quantized` X: "row" ([M, 1]), "group128" ([M, K / 128]), "static" ([1, 1]).
        multiplied: (x, packed) -> (X [M, K], W [N, K]) in float32, what a kernel in low precision multiplies, for checks against
            float64 of the same operands.
        quantized_run: (x, packed, bias or None, *, activation) -> `Quantized` Y, of a kernel that can quantise its output for the
            next product.
    """

    name: str
    family: str
    product: Callable[..., Tensor]
    unsupported: Callable[[SparseFormat, Problem], str | None] = all_supported
    pack: Callable[[SparseFormat], Any] = as_stored
    requires_cuda: bool = False
    is_reference: bool = False
    layouts: tuple[str, ...] = ("row_major",)
    dtype_name: str | None = None
    fuses_epilogue: bool = False
    tunable: Tunable | None = None
    row_x_tunable: Tunable | None = None
    fastest_from: int = 1
    convolving: Convolving | None = None
    precision: str = "none"
    takes_scales: tuple[str, ...] = ()
    multiplied: Callable[[Any, Any], tuple[Tensor, Tensor]] | None = None
    quantized_run: "Callable[..., Quantized] | None" = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "KernelEntry":
        return self

    def run(
        self,
        x: "Tensor | Quantized",
        packed: Any,
        bias: Tensor | None = None,
        *,
        layout: str | None = None,
        **epilogue: Any,
    ) -> Tensor:
        """Y = X · Wᵀ (+ bias) in a layout.

        Args:
            x: in the layout's order, with any strides; a `Quantized` where the kernel takes its scales.
            packed: what `pack` gave.
            bias: [N].
            layout: one of `layouts`; by default the first, which is row-major wherever the kernel takes that.
            epilogue: where `fuses_epilogue`: `activation` (a name of `common.epilogue.ACTIVATIONS`) and `residual` (of y's
                shape and dtype), for y = activation(x · Wᵀ + bias) + residual.
        Returns:
            in the layout's order; the strides are the kernel's own choice.
        Raises:
            UnsupportedProblem: it does not take the layout.
        """
        if layout is not None and layout not in self.layouts:
            raise UnsupportedProblem(f"{self.name}: {self._other_layouts(layout)}")
        if len(self.layouts) > 1:
            epilogue["layout"] = layout or self.layouts[0]
        return self.product(x, packed, bias, **epilogue)

    def label(self, layout: str) -> str:
        """What results, plans and configurations call this kernel in a layout."""
        return label(self.name, layout)

    def tunable_in(self, layout: str) -> Tunable | None:
        """Its launch parameters in a layout."""
        return self.tunable if layout in X_FEATURE_MAJOR else self.row_x_tunable or self.tunable

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
        if problem.layout not in self.layouts:
            return self._other_layouts(problem.layout)
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

    def _other_layouts(self, layout: str) -> str:
        return f"takes {' or '.join(self.layouts)} activations, not {layout}"


def filled_entry(entry: KernelEntry, family: str) -> KernelEntry:
    """The kernel of another family for weights of this one.

    Args:
        entry: of another family; what decides whether it supports a weight (the tile, the block, the shape) has the same name in
            both formats.
        family: whose formats have `filled()`, which gives the weight as the other family stores it.
    """
    name = f"{family}_filled_{entry.name.removeprefix(entry.family + '_')}"
    return replace(entry, name=name, family=family, pack=partial(_pack, entry))


def _pack(entry: KernelEntry, stored: Any) -> Any:
    return entry.pack(stored.filled())
