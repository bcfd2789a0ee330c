"""What all kernel tests share: weights of every family, devices, tolerances, poisoned memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem, SparseFormat
from sparsefront_kernels.bench.poison import poisoned_memory
from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor

# Relative Frobenius error against float64. Nowhere else is a tolerance written.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


@dataclass(frozen=True)
class Case:
    """A weight to build: `mask` draws the pattern, `parameters` go to `from_dense`."""

    name: str
    family: str
    shape: tuple[int, int]
    mask: Callable[[int, int], Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)

    def dense(self) -> tuple[Tensor, Tensor]:
        """Fresh weight and mask; a kept weight of zero and a pruned NaN are among them where there is room."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(self.shape, generator=generator)
        mask = self.mask(*self.shape)
        weight[~mask] = torch.nan  # a pruned weight must not matter, whatever it is
        if mask.any():
            row, column = mask.nonzero()[0].tolist()
            weight[row, column] = -0.0
        return weight, mask

    def build(self) -> SparseFormat:
        weight, mask = self.dense()
        return FORMATS[self.family].from_dense(weight, mask, **self.parameters)


def _chance(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def _free(density: float) -> Callable[[int, int], Tensor]:
    return lambda n, k: _chance(n, k) < density


def _vectors(tile: int, density: float) -> Callable[[int, int], Tensor]:
    """Every `tile` consecutive outputs share their inputs."""
    return lambda n, k: (_chance(-(-n // tile), k) < density).repeat_interleave(tile, dim=0)[:n]


def _tile_wise(tile: int, density: float) -> Callable[[int, int], Tensor]:
    """A third of the outputs dropped, then tiles of the survivors, each with its own share of inputs."""

    def draw(n: int, k: int) -> Tensor:
        survivors = (_chance(n) > 1 / 3).nonzero().flatten()
        tiles = -(-len(survivors) // tile)
        share = torch.linspace(0, 2 * density, tiles)[:, None]  # uneven: from none to twice the mean
        mask = torch.zeros(n, k, dtype=torch.bool)
        mask[survivors] = (_chance(tiles, k) < share).repeat_interleave(tile, dim=0)[: len(survivors)]
        return mask

    return draw


def _blocks(bn: int, bk: int, density: float) -> Callable[[int, int], Tensor]:
    return lambda n, k: (_chance(n // bn, k // bk) < density).repeat_interleave(bn, 0).repeat_interleave(bk, 1)


def _n_of_m(n_kept: int, m: int, density: float = 1.0) -> Callable[[int, int], Tensor]:
    """n of every m; a density below 1 leaves groups with fewer."""

    def draw(n: int, k: int) -> Tensor:
        order = _chance(n, k // m, m).argsort(dim=2).argsort(dim=2)
        return (order < n_kept).reshape(n, k) & (_chance(n, k) < density)

    return draw


def _any_order(draw: Callable[[int, int], Tensor], *, outputs: bool = False, inputs: bool = False) -> Callable:
    """The mask of `draw` with its outputs or inputs moved to where `_order` says."""

    def moved(n: int, k: int) -> Tensor:
        mask = draw(n, k)
        mask = mask[_order(n).argsort()] if outputs else mask
        return mask[:, _order(k).argsort()] if inputs else mask

    return moved


def _order(length: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(2))


def _overlaid(draw: Callable[[int, int], Tensor], density: float) -> Callable[[int, int], Tensor]:
    """The mask of `draw` and a few weights wherever they are."""
    return lambda n, k: draw(n, k) | (torch.rand(n, k, generator=torch.Generator().manual_seed(3)) < density)


def _same_count(block: int, count: int) -> Callable[[int, int], Tensor]:
    """`count` blocks in every row of blocks."""

    def draw(n: int, k: int) -> Tensor:
        places = _chance(n // block, k // block).argsort(dim=1).argsort(dim=1)
        return (places < count).repeat_interleave(block, 0).repeat_interleave(block, 1)

    return draw


CASES = [
    Case("dense", "dense", (13, 17), _free(0.5)),
    Case("gathered-tile4", "gathered", (12, 16), _vectors(4, 0.5), {"tile": 4, "drop_empty_outputs": False}),
    Case("gathered-uneven", "gathered", (101, 149), _tile_wise(16, 0.4), {"tile": 16}),
    Case("gathered-wide", "gathered", (211, 29), _vectors(200, 0.5), {"tile": 200}),
    Case("gathered-128", "gathered", (257, 83), _tile_wise(128, 0.3), {"tile": 128}),
    Case("gathered-odd-tile", "gathered", (50, 31), _tile_wise(24, 0.5), {"tile": 24}),
    Case("gathered-one-output", "gathered", (1, 5), _free(1.0), {"tile": 128}),
    Case("gathered-kept", "gathered", (32, 70), _free(1.0), {"tile": 32}),
    Case("gathered-pruned", "gathered", (19, 7), _free(0.0), {"tile": 8}),
    Case("gathered-pruned-held", "gathered", (19, 7), _free(0.0), {"tile": 8, "drop_empty_outputs": False}),
    Case(
        "gathered-shuffled",
        "gathered",
        (48, 37),
        _any_order(_vectors(16, 0.4), outputs=True),
        {"tile": 16, "drop_empty_outputs": False, "output_order": _order(48)},
    ),
    Case(
        "gathered-shuffled-uneven",
        "gathered",
        (101, 53),
        _any_order(_tile_wise(16, 0.4), outputs=True),
        {"tile": 16, "output_order": _order(101)},
    ),
    Case("gathered-filled", "gathered", (45, 38), _free(0.1), {"tile": 16, "fill": True}),
    Case("gathered_overlay", "gathered_overlay", (101, 149), _overlaid(_tile_wise(16, 0.6), 0.02), {"tile": 16}),
    Case("gathered_overlay-tiles", "gathered_overlay", (64, 40), _vectors(16, 0.5), {"tile": 16}),
    Case("gathered_overlay-free", "gathered_overlay", (33, 29), _free(0.3), {"tile": 8}),
    Case("gathered_overlay-kept", "gathered_overlay", (20, 9), _free(1.0), {"tile": 8}),
    Case("gathered_overlay-pruned", "gathered_overlay", (20, 9), _free(0.0), {"tile": 8}),
    Case("blocked-4x64", "blocked", (12, 192), _blocks(4, 64, 0.4), {"block": [4, 64]}),
    Case("blocked-32x32", "blocked", (96, 160), _blocks(32, 32, 0.4), {"block": (32, 32)}),
    Case("blocked-192x96", "blocked", (192, 192), _blocks(192, 96, 0.6), {"block": [192, 96]}),
    Case("blocked-3x5", "blocked", (33, 35), _blocks(3, 5, 0.3), {"block": [3, 5]}),
    Case("blocked-1xk", "blocked", (7, 65), _blocks(1, 65, 0.5), {"block": [1, 65]}),
    Case("blocked-filled", "blocked", (32, 48), _free(0.01), {"block": [16, 16], "fill": True}),
    Case("blocked-kept", "blocked", (32, 48), _free(1.0), {"block": [16, 16]}),
    Case("blocked-pruned", "blocked", (32, 48), _free(0.0), {"block": [16, 16]}),
    Case("n_m-2:4", "n_m", (37, 100), _n_of_m(2, 4), {"n": 2, "m": 4}),
    Case("n_m-1:4-short", "n_m", (16, 20), _n_of_m(1, 4, 0.5), {"n": 1, "m": 4}),
    Case("n_m-5:12", "n_m", (23, 84), _n_of_m(5, 12), {"n": 5, "m": 12}),
    Case("n_m-3:32-short", "n_m", (71, 96), _n_of_m(3, 32, 0.7), {"n": 3, "m": 32}),
    Case("n_m-32:64", "n_m", (17, 128), _n_of_m(32, 64), {"n": 32, "m": 64}),
    Case("n_m-7:7", "n_m", (5, 21), _n_of_m(7, 7), {"n": 7, "m": 7}),
    Case("n_m-1:1-pruned", "n_m", (3, 11), _free(0.0), {"n": 1, "m": 1}),
    Case(
        "n_m-2:4-permuted",
        "n_m",
        (37, 64),
        _any_order(_n_of_m(2, 4), inputs=True),
        {"n": 2, "m": 4, "input_order": _order(64)},
    ),
    Case(
        "n_m-3:7-permuted",
        "n_m",
        (16, 49),
        _any_order(_n_of_m(3, 7, 0.8), inputs=True),
        {"n": 3, "m": 7, "input_order": _order(49)},
    ),
    Case("semi_structured", "semi_structured", (64, 96), _n_of_m(2, 4)),
    Case("semi_structured-short", "semi_structured", (13, 36), _n_of_m(2, 4, 0.6)),
    Case(
        "semi_structured-permuted",
        "semi_structured",
        (64, 96),
        _any_order(_n_of_m(2, 4), inputs=True),
        {"input_order": _order(96)},
    ),
    Case("ell-1", "ell", (31, 43), _same_count(1, 9), {"block": 1}),
    Case("ell-2", "ell", (24, 18), _same_count(2, 4), {"block": 2}),
    Case("ell-4", "ell", (36, 28), _same_count(4, 3), {"block": 4}),
    Case("ell-kept", "ell", (6, 10), _free(1.0), {"block": 2}),
    Case("ell-pruned", "ell", (6, 10), _free(0.0), {"block": 2}),
    Case("csr", "csr", (31, 43), _free(0.2)),
    Case("csr-empty-rows", "csr", (40, 6), _free(0.05)),
    Case("csr-kept", "csr", (9, 11), _free(1.0)),
    Case("csr-pruned", "csr", (9, 11), _free(0.0)),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """Every weight of the table in turn."""
    return request.param


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """The table by name, for tests that need one weight."""
    return {case.name: case for case in CASES}


DEVICES = ["cpu"] + ([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU everywhere (Triton in its interpreter where there is no GPU), and CUDA where there is one."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def triton_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, Triton kernels run in the interpreter; only during these tests, since others expect a refusal.

    Triton decides for each kernel when its module is first imported, which happens inside these tests.
    """
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def assert_close() -> Callable[[Tensor, Tensor], None]:
    """(y, expected in float64): shapes equal, everything written, relative Frobenius error within the table."""

    def check(y: Tensor, expected: Tensor) -> None:
        assert y.shape == expected.shape
        assert not y.isnan().any(), "an element was never written, or memory outside the operands was read"
        error = torch.linalg.norm(y.double().cpu() - expected.cpu())
        assert error <= TOLERANCE[y.dtype] * torch.linalg.norm(expected.cpu())

    return check


@pytest.fixture(name="poisoned_memory")
def poisoned_memory_fixture() -> Callable[[], Any]:
    """A context in which `torch.empty` gives NaN, so that an element which a kernel leaves out shows."""
    return poisoned_memory


@pytest.fixture
def activations() -> Callable[..., Tensor]:
    """(problem, kind) -> X of the problem's shape, dtype and device; (problem, kind, shape): a residual of that shape.

    Kinds: "plain"; "inside_nan", a window of a larger NaN matrix, so that it is neither contiguous nor aligned and a
    read outside shows; "transposed", column-major.
    """

    def draw(problem: Problem, kind: str = "plain", shape: tuple[int, int] | None = None) -> Tensor:
        rows, columns = shape or problem.x_shape
        x = torch.randn(rows, columns, dtype=torch.float32).to(problem.device, problem.dtype)
        if kind == "inside_nan":
            around = torch.full((rows + 2, columns + 4), torch.nan, dtype=problem.dtype, device=problem.device)
            around[1:-1, 1:-3] = x
            return around[1:-1, 1:-3]
        return x.t().contiguous().t() if kind == "transposed" else x

    return draw


@pytest.fixture
def expected_product() -> Callable[..., Tensor]:
    """(x, format, bias, layout, activation and residual by name) -> Y in float64 from the dense weight."""

    def product(
        x: Tensor,
        stored: SparseFormat,
        bias: Tensor | None,
        layout: str = "row_major",
        *,
        activation: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        rows = x.double().t() if layout in X_FEATURE_MAJOR else x.double()
        if residual is not None and layout in Y_FEATURE_MAJOR:
            residual = residual.t()
        y = with_epilogue(rows @ stored.to_dense().double().t(), bias, activation, residual)
        return y.t() if layout in Y_FEATURE_MAJOR else y

    return product


def pytest_report_header() -> str:
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "none, Triton kernels run interpreted"
    return f"kernel tests: GPU {found}; TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET', 'unset')}"
