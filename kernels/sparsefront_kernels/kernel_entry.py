"""An entry of the kernel registry: what the kernel supports, how it packs a weight, how it runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Convolving, Problem, label
from sparsefront_kernels.tuning.launches import TunedLaunches

if TYPE_CHECKING:
    from sparsefront_kernels.quantized.quantize import Quantized


class UnsupportedProblem(ValueError):
    """A kernel does not support the weight or the problem; the message says which kernel and why."""


def as_stored(stored: SparseFormat) -> SparseFormat:
    """`pack` of a kernel that reads the format directly."""
    return stored


def all_supported(stored: SparseFormat, problem: Problem) -> str | None:
    """`unsupported` of a kernel that supports everything its family can hold."""
    return None


@dataclass(frozen=True)
class KernelEntry:
    """One way to multiply by a weight of one family.

    Move the format to the problem's device and dtype, call `packed = entry.pack(format)` once, then
    `y = entry.run(x, packed, bias)` as often as needed.

    Args:
            name: unique; used in configurations and reports.
            family: the storage family it reads.
            product: (x, packed, bias or None) -> y; takes the keyword `layout` if the kernel supports several.
            unsupported: (format, problem) -> why the kernel does not support them, or None. `unsupported_reason` calls it
                after the checks common to all kernels.
            pack: format -> the packed weight, on the format's device, valid for every layout. Not timed.
            requires_cuda: True for a GPU kernel (tests may still run it on a CPU in Triton's interpreter).
            is_reference: True for plain PyTorch that runs on any device: the reference in tests, and the CPU path.
            layouts: supported layouts of X and Y, in the order of `problem.LAYOUTS`.
            dtype_name: compute dtype if x's dtype does not imply it: "tf32" for float32 operands rounded to TF32.
            fuses_epilogue: whether `run` takes `activation` and `residual`.
            tunable: its launch parameters; None: nothing to tune.
            row_x_tunable: launch parameters for row-major X, if the kernel reads it differently; None: the same.
            fastest_from: number of rows from which it was measured to be faster than the later kernels of its family;
                `best_kernel` uses it if the performance model covers none of them.
            convolving: how it reads images directly (row-major only); None: convolutions are lowered by im2col first.
            precision: "none": it multiplies X and W as they are. "fp8" or "int8": it packs W in that precision, and takes X in
                16 or 32 bits (quantized per row) or as a `Quantized`.
            takes_scales: accepted scales of a `Quantized` X: "row" ([M, 1]), "group128" ([M, K / 128]), "static" ([1, 1]).
            multiplied: (x, packed) -> (X [M, K], W [N, K]) in float32: the operands of a low-precision kernel after
                quantization, to check its result in float64.
            quantized_run: (x, packed, bias or None, *, activation) -> `Quantized` Y, if the kernel can quantize its output for
                the next product.
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
    tunable: TunedLaunches | None = None
    row_x_tunable: TunedLaunches | None = None
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
        """Compute Y = X · Wᵀ (+ bias) in a layout.

        Args:
            x: in the layout's order, any strides; a `Quantized` if the kernel takes its scales.
            packed: result of `pack`.
            bias: [N].
            layout: one of `layouts`; default: the first, which is row-major if the kernel supports that.
            epilogue: if `fuses_epilogue`: `activation` (a name in `epilogue.ACTIVATIONS`) and `residual` (y's shape and
                dtype), for y = activation(x · Wᵀ + bias) + residual.
        Returns:
            Y in the layout's order; the kernel chooses the strides.
        Raises:
            UnsupportedProblem: the kernel does not support the layout.
        """
        return self.product(x, packed, bias, **self.layout_keyword(layout), **epilogue)

    def layout_keyword(self, layout: str | None) -> dict[str, str]:
        """The keyword `layout` of `product`, if that takes one; raises as `run`."""
        if layout is not None and layout not in self.layouts:
            raise UnsupportedProblem(f"{self.name}: {self._other_layouts(layout)}")
        return {"layout": layout or self.layouts[0]} if len(self.layouts) > 1 else {}

    def label(self, layout: str) -> str:
        """Name of the kernel and layout in results, plans and configurations."""
        return label(self.name, layout)

    def tunable_in(self, layout: str) -> TunedLaunches | None:
        """Launch parameters in a layout."""
        return self.tunable if layout in X_FEATURE_MAJOR else self.row_x_tunable or self.tunable

    def computes_in(self, dtype_name: str) -> bool:
        """Whether it computes in this dtype (fp16, bf16, fp32, tf32), according to the entry.

        An entry with a `dtype_name` computes only in that; any other in everything but tf32.
        """
        return self.dtype_name == dtype_name if self.dtype_name or dtype_name == "tf32" else True

    def unsupported_reason(self, stored: SparseFormat, problem: Problem) -> str | None:
        """Why the kernel does not support the weight and the problem; None if it does.

        The format is treated as if it were already on the problem's device and in its dtype.
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
        """Whether the kernel can multiply by this weight."""
        return self.unsupported_reason(stored, problem) is None

    def require_supported(self, stored: SparseFormat, problem: Problem) -> None:
        """Raise UnsupportedProblem with the kernel's name and the reason unless it supports the problem."""
        reason = self.unsupported_reason(stored, problem)
        if reason:
            raise UnsupportedProblem(f"{self.name}: {reason}")

    def _other_layouts(self, layout: str) -> str:
        return f"takes {' or '.join(self.layouts)} activations, not {layout}"


def filled_entry(entry: KernelEntry, family: str) -> KernelEntry:
    """Adapt the kernel of another family to weights of this one.

    Args:
        entry: of another family. The attributes that its checks read (tile, block, shape) have the same names in both formats.
        family: its formats have `filled()`, which returns the weight in the other family's format.
    """
    name = f"{family}_filled_{entry.name.removeprefix(entry.family + '_')}"
    return replace(entry, name=name, family=family, pack=partial(_pack, entry))


def _pack(entry: KernelEntry, stored: Any) -> Any:
    return entry.pack(stored.filled())
