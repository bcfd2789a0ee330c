"""Random problems for any kernel of the registry: what is drawn, and what is asked of the result.

Of ten seeds in a row, each stands for an `OCCASION`; what the occasion leaves open is random. Triton compiles a kernel anew
for each dtype, tile, kind of bias and more: there, twenty seeds in a row share those and the rows of X, which saves most of
the time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import drawn_masks as masks
import torch
from in_layout import InLayout
from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat
from sparsefront_kernels.epilogue import ACTIVATIONS, with_epilogue
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor

# Relative Frobenius error against float64, by dtype, or by the precision that an entry names. Nowhere else is it written.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3, "tf32": 1e-3}
OCCASIONS = (
    "anything",
    "one row",
    "prime sizes",
    "all kept",
    "all pruned",
    "outputs dropped",  # where the family can drop them: tiles that keep nothing otherwise
    "another order",  # of outputs or inputs, where the family stores one
    "x is a window",  # of NaN: neither contiguous nor aligned
    "x is transposed",
    "x is unaligned",  # begins one element into its memory
)
LAYING = {"x is a window": "inside_nan", "x is transposed": "transposed", "x is unaligned": "unaligned"}
PRIMES = (2, 3, 5, 7, 13, 31, 61, 97, 131, 257, 389, 521, 599)
ROWS = (2, 7, 8, 13, 33, 64, 100, 127, 256, 333, 1030)
SHARING = 20  # seeds in a row that share what Triton compiles for
RECENT = 64  # weights that are held, for other kernels of the family, which are asked about the same ones
DRAWS = 60  # of weights; a kernel that supports none of them counts as supporting no weight


@dataclass(frozen=True)
class DrawnWeight:
    """[N, K], the mask's structure, and what `from_dense` takes."""

    shape: tuple[int, int]
    mask: masks.Draw
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomProblem:
    """A kernel's operands, fresh.

    Args:
        says: what was drawn, for a failing test's message.
        packed: the weight as the kernel reads it.
        epilogue: keywords of `run`: activation and residual where the kernel fuses them.
    """

    says: str
    kernel: InLayout
    stored: SparseFormat
    packed: Any
    problem: Problem
    x: Tensor
    bias: Tensor | None
    epilogue: dict[str, Any]

    def run(self) -> Tensor:
        with precision_allowed(self.kernel):
            return self.kernel.run(self.x, self.packed, self.bias, **self.epilogue)

    def expected(self) -> Tensor:
        """Y in float64, in the kernel's layout."""
        return exact_product(self.x, self.stored, self.bias, self.problem.layout, **self.epilogue)

    def fault(self, y: Tensor, expected: Tensor | None = None) -> str | None:
        """What is wrong with a result, or None; `expected` spares the product in float64."""
        expected = self.expected() if expected is None else expected
        if (y.dtype, y.device, y.shape) != (self.x.dtype, self.x.device, expected.shape):
            return f"{self.says}: y is {y.dtype} {list(y.shape)} on {y.device}"
        fault = fault_of(y, expected, tolerance(self.kernel, y.dtype))
        return fault and f"{self.says}: {fault}"


def tolerance(kernel: KernelEntry | InLayout, dtype: torch.dtype) -> float:
    """The relative error that a kernel may have."""
    return TOLERANCE[kernel.dtype_name or dtype]


@contextmanager
def precision_allowed(kernel: KernelEntry | InLayout) -> Iterator[None]:
    """Within, PyTorch's float32 products may be rounded to TF32 where the kernel rounds them, which it asks for."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if kernel.dtype_name == "tf32" else before
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def fault_of(y: Tensor, expected: Tensor, allowed: float) -> str | None:
    """Why y is not the expected product (float64), or None."""
    if y.isnan().any():
        return f"{int(y.isnan().sum())} elements were never written, or memory outside the operands was read"
    error = torch.linalg.norm(y.double().cpu() - expected.cpu())
    bound = allowed * torch.linalg.norm(expected.cpu())
    return None if error <= bound else f"the error is {error / bound * allowed:.1e} of the product, not {allowed:.0e}"


def exact_product(
    x: Tensor,
    stored: SparseFormat,
    bias: Tensor | None,
    layout: str = "row_major",
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y in float64 from the dense weight; x, the residual and Y in the layout."""
    rows = x.double().t() if layout in X_FEATURE_MAJOR else x.double()
    if residual is not None and layout in Y_FEATURE_MAJOR:
        residual = residual.t()
    y = with_epilogue(rows @ stored.to_dense().double().t(), bias, activation, residual)
    return y.t() if layout in Y_FEATURE_MAJOR else y


def laid_out(values: Tensor, kind: str) -> Tensor:
    """The same matrix in other memory.

    Kinds: "plain"; "inside_nan", a window of a larger NaN matrix, so that it is neither contiguous nor aligned and a
    read outside shows; "transposed", column-major; "unaligned", contiguous from the second element of its memory on.
    """
    rows, columns = values.shape
    if kind == "inside_nan":
        around = values.new_full((rows + 2, columns + 4), torch.nan)
        around[1:-1, 1:-3] = values
        return around[1:-1, 1:-3]
    if kind == "unaligned":
        around = values.new_full((rows * columns + 2,), torch.nan)
        around[1:-1] = values.flatten()
        return around[1:-1].view(rows, columns)
    return values.t().contiguous().t() if kind == "transposed" else values


def draw(kernel: InLayout, seed: int, device: torch.device | str, *, largest: int = 600) -> RandomProblem | str:
    """A problem that the kernel supports; or, where it supports none that was drawn, its last reason.

    Args:
        largest: inputs, outputs and rows, at most.
    """
    sharing = SHARING if "triton" in kernel.name else 1
    shared, own = Random(f"compiled {seed // sharing}"), Random(f"own {seed}")
    occasion, reason = OCCASIONS[seed % len(OCCASIONS)], ""
    for _ in range(DRAWS):
        key = kernel.family, largest, shared.getstate(), own.getstate()
        weight = WEIGHTS[kernel.family](shared, own, occasion, largest)
        dtype = shared.choice((torch.float16, torch.bfloat16, torch.float32))
        bias_kind = shared.choice(("none", "own dtype", "float32"))
        rows = shared.choice([m for m in ROWS if m <= largest])
        (n, k), m = weight.shape, 1 if occasion == "one row" else rows
        problem = Problem(m, k, n, dtype, device, kernel.layout)
        stored = _stored(key, weight, own.randrange(2**31))
        with precision_allowed(kernel):
            reason = kernel.unsupported_reason(stored, problem)
        if reason == f"needs a CUDA device, not {problem.device.type}":  # another weight changes nothing
            return reason
        if reason is not None:
            continue
        stored = stored.to(problem.device, dtype)
        generator = torch.Generator().manual_seed(own.randrange(2**31))
        kind = LAYING.get(occasion, "plain")
        says = f"{kernel.name}, seed {seed} ({occasion}): {_described(stored)}, {problem}, bias {bias_kind}, x {kind}"
        drawn = RandomProblem(
            says=says,
            kernel=kernel,
            stored=stored,
            packed=kernel.pack(stored),
            problem=problem,
            x=laid_out(_normal(problem.x_shape, problem, generator), kind),
            bias=None if bias_kind == "none" else _bias(bias_kind, kind, problem, generator),
            epilogue={},
        )
        return _with_epilogue(drawn, shared, own, generator) if kernel.fuses_epilogue else drawn
    return reason


def _with_epilogue(drawn: RandomProblem, shared: Random, own: Random, generator: torch.Generator) -> RandomProblem:
    """Half of the problems of a kernel that fuses an epilogue have one."""
    activation, added = shared.choice([*ACTIVATIONS, *["none"] * 2]), shared.choice((True, False))
    epilogue: dict[str, Any] = {"activation": activation}
    if added:
        values = _normal(drawn.problem.y_shape, drawn.problem, generator)
        epilogue["residual"] = laid_out(values, own.choice(("plain", "inside_nan", "transposed")))
    return replace(drawn, epilogue=epilogue, says=f"{drawn.says}, {activation}{', residual' * added}")


_recent: dict[tuple, SparseFormat] = {}


def _stored(key: tuple, weight: DrawnWeight, seed: int) -> SparseFormat:
    """The key: what the weight follows from, its family first."""
    if key not in _recent:
        mask = weight.mask(*weight.shape)
        values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
        values[~mask] = torch.nan  # a pruned weight must not matter, whatever it is
        if len(_recent) == RECENT:
            del _recent[next(iter(_recent))]
        _recent[key] = FORMATS[key[0]].from_dense(values, mask, **weight.parameters)
    return _recent[key]


def _described(stored: SparseFormat) -> str:
    numbers = {name: part for name, part in stored.meta().items() if name != "shape"}
    return f"{stored.family} {numbers}"


def _normal(shape: tuple[int, ...], problem: Problem, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(problem.device, problem.dtype)


def _bias(kind: str, x_kind: str, problem: Problem, generator: torch.Generator) -> Tensor:
    """[N], unaligned where X is."""
    bias = torch.randn(problem.n, generator=generator).to(problem.device)
    bias = bias.to(problem.dtype) if kind == "own dtype" else bias
    return laid_out(bias[None], "unaligned" if x_kind in ("unaligned", "inside_nan") else "plain")[0]


def _size(own: Random, occasion: str, largest: int, multiple: int = 1) -> int:
    """A length that `multiple` divides, prime where it can be."""
    if occasion == "prime sizes":
        return multiple * own.choice([prime for prime in PRIMES if prime * multiple <= max(largest, 2 * multiple)])
    return multiple * (own.randrange(max(1, largest // multiple)) | 1)


def _density(own: Random, occasion: str) -> float:
    return {"all kept": 1.0, "all pruned": 0.0}.get(occasion) if "all" in occasion else own.choice((0.05, 0.25, 0.6))


def _gathered(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    tile = shared.choice((3, 4, 8, 16, 24, 32, 32, 64, 64, 128, 128, 192, 256))
    n, k = _size(own, occasion, largest), _size(own, occasion, largest)
    density, seed = _density(own, occasion), own.randrange(2**31)
    dropped = 0.4 if occasion in ("outputs dropped", "another order") and own.random() < 0.7 else 0.0
    mask = masks.tile_wise(tile, density, seed, dropped) if density < 1 else masks.free(1.0)
    parameters: dict[str, Any] = {"tile": tile, "drop_empty_outputs": dropped > 0}
    if occasion == "another order":
        mask = masks.any_order(mask, outputs=True, seed=seed)
        parameters["output_order"] = masks.order(n, seed)
    return DrawnWeight((n, k), mask, parameters)


def _gathered_overlay(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    tiles = _gathered(shared, own, "anything" if occasion == "another order" else occasion, largest)
    alone = 0.0 if occasion == "all pruned" else own.choice((0.0, 0.02))
    return DrawnWeight(tiles.shape, masks.overlaid(tiles.mask, alone), {"tile": tiles.parameters["tile"]})


def _gathered_2_4(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    tile = shared.choice((64, 64, 128, 128, 192, 256, 3, 16))
    density, seed = _density(own, occasion), own.randrange(2**31)
    if density == 1:  # of every four inputs, as many as can be
        shape = _size(own, occasion, largest, tile), _size(own, occasion, largest, 4)
        return DrawnWeight(shape, masks.n_of_m(2, 4, 1.0, seed), {"tile": tile})
    shape = _size(own, occasion, largest), _size(own, occasion, largest)
    dropped = 0.4 if occasion == "outputs dropped" else 0.0
    mask = masks.halved_tiles(tile, density, seed, dropped) if density else masks.free(0.0)
    return DrawnWeight(shape, mask, {"tile": tile})


def _blocked(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    bn, bk = shared.choice(
        ((4, 64), (16, 16), (32, 32), (64, 64), (64, 64), (3, 5), (1, 7), (128, 64), (128, 16), (64, 32), (128, 128))
    )
    shape = _size(own, occasion, largest, bn), _size(own, occasion, largest, bk)
    return DrawnWeight(shape, masks.blocks(bn, bk, _density(own, occasion), own.randrange(2**31)), {"block": [bn, bk]})


def _blocked_2_4(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    bn, bk = shared.choice(((64, 64), (64, 64), (128, 64), (128, 128), (192, 128), (16, 16), (4, 12), (3, 4)))
    shape = _size(own, occasion, largest, bn), _size(own, occasion, largest, bk)
    density, seed = _density(own, occasion), own.randrange(2**31)
    in_groups = masks.n_of_m(2, 4, 1.0 if density == 1 else own.choice((1.0, 0.7)), seed)
    return DrawnWeight(shape, masks.both(masks.blocks(bn, bk, density, seed), in_groups), {"block": [bn, bk]})


def _in_windows(own: Random, occasion: str, shape: tuple[int, int], n: int, m: int, named: bool) -> DrawnWeight:
    density, seed = _density(own, occasion), own.randrange(2**31)
    mask = masks.n_of_m(n, m, 1.0 if density == 0.6 else density, seed)
    parameters: dict[str, Any] = {"n": n, "m": m} if named else {}
    if occasion == "another order":
        mask = masks.any_order(mask, inputs=True, seed=seed)
        parameters["input_order"] = masks.order(shape[1], seed)
    return DrawnWeight(shape, mask, parameters)


def _n_m(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    n, m = shared.choice(((2, 4), (1, 4), (5, 12), (3, 32), (32, 64), (7, 7), (1, 1)))
    shape = _size(own, occasion, largest), _size(own, occasion, largest, m)
    return _in_windows(own, occasion, shape, n, m, named=True)


def _semi_structured(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    multiple = shared.choice((4, 64))
    shape = _size(own, occasion, largest, multiple // 4), _size(own, occasion, largest, multiple)
    if multiple == 64:
        shape = 2 * shape[0], shape[1]
    return _in_windows(own, occasion, shape, 2, 4, named=False)


def _ell(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    block = shared.choice((1, 2, 4))
    shape = _size(own, occasion, largest, block), _size(own, occasion, largest, block)
    count = round(_density(own, occasion) * (shape[1] // block))
    return DrawnWeight(shape, masks.same_count(block, count, own.randrange(2**31)), {"block": block})


def _dense(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    multiples = shared.choice(((1, 1), (64, 16), (128, 64), (192, 32)))
    shape = tuple(_size(own, occasion, largest, multiple) for multiple in multiples)
    return DrawnWeight(shape, masks.free(_density(own, occasion), own.randrange(2**31)))


def _free(shared: Random, own: Random, occasion: str, largest: int) -> DrawnWeight:
    shape = _size(own, occasion, largest), _size(own, occasion, largest)
    return DrawnWeight(shape, masks.free(_density(own, occasion), own.randrange(2**31)))


# family -> draws a weight from (what ten seeds share, what each has of its own, occasion, largest size)
WEIGHTS: dict[str, Callable[[Random, Random, str, int], DrawnWeight]] = {
    "dense": _dense,
    "gathered": _gathered,
    "gathered_overlay": _gathered_overlay,
    "gathered_2_4": _gathered_2_4,
    "blocked": _blocked,
    "blocked_2_4": _blocked_2_4,
    "n_m": _n_m,
    "semi_structured": _semi_structured,
    "ell": _ell,
    "csr": _free,
}
