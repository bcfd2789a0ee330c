"""What all kernel tests share: weights of every family, devices, tolerances, poisoned memory."""

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_masks import (
    any_order,
    blocks,
    both,
    free,
    halved_tiles,
    n_of_m,
    order,
    overlaid,
    same_count,
    tile_wise,
    vectors,
)
from random_problems import TOLERANCE, exact_product, fault_of, laid_out
from sparsefront_kernels import FORMATS, Problem, SparseFormat, cuda_library
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import forget_choices
from torch import Tensor


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


CASES = [
    Case("dense", "dense", (13, 17), free(0.5)),
    Case("dense-wide", "dense", (192, 128), free(0.9)),
    Case("gathered-tile4", "gathered", (12, 16), vectors(4, 0.5), {"tile": 4, "drop_empty_outputs": False}),
    Case("gathered-uneven", "gathered", (101, 149), tile_wise(16, 0.4), {"tile": 16}),
    Case("gathered-wide", "gathered", (211, 29), vectors(200, 0.5), {"tile": 200}),
    Case("gathered-128", "gathered", (257, 83), tile_wise(128, 0.3), {"tile": 128}),
    Case("gathered-odd-tile", "gathered", (50, 31), tile_wise(24, 0.5), {"tile": 24}),
    Case("gathered-one-output", "gathered", (1, 5), free(1.0), {"tile": 128}),
    Case("gathered-kept", "gathered", (32, 70), free(1.0), {"tile": 32}),
    Case("gathered-pruned", "gathered", (19, 7), free(0.0), {"tile": 8}),
    Case("gathered-pruned-held", "gathered", (19, 7), free(0.0), {"tile": 8, "drop_empty_outputs": False}),
    Case(
        "gathered-shuffled",
        "gathered",
        (48, 37),
        any_order(vectors(16, 0.4), outputs=True),
        {"tile": 16, "drop_empty_outputs": False, "output_order": order(48)},
    ),
    Case(
        "gathered-shuffled-uneven",
        "gathered",
        (101, 53),
        any_order(tile_wise(16, 0.4), outputs=True),
        {"tile": 16, "output_order": order(101)},
    ),
    Case("gathered-filled", "gathered", (45, 38), free(0.1), {"tile": 16, "fill": True}),
    Case("gathered_overlay", "gathered_overlay", (101, 149), overlaid(tile_wise(16, 0.6), 0.02), {"tile": 16}),
    Case("gathered_overlay-tiles", "gathered_overlay", (64, 40), vectors(16, 0.5), {"tile": 16}),
    Case("gathered_overlay-free", "gathered_overlay", (33, 29), free(0.3), {"tile": 8}),
    Case("gathered_overlay-kept", "gathered_overlay", (20, 9), free(1.0), {"tile": 8}),
    Case("gathered_overlay-pruned", "gathered_overlay", (20, 9), free(0.0), {"tile": 8}),
    Case("gathered_2_4", "gathered_2_4", (257, 83), halved_tiles(64, 0.4), {"tile": 64}),
    Case("gathered_2_4-128", "gathered_2_4", (300, 150), halved_tiles(128, 0.5), {"tile": 128}),
    Case("gathered_2_4-odd-tile", "gathered_2_4", (50, 31), halved_tiles(7, 0.5), {"tile": 7}),
    Case("gathered_2_4-kept", "gathered_2_4", (40, 18), free(1.0), {"tile": 16}),
    Case("gathered_2_4-pruned", "gathered_2_4", (19, 8), free(0.0), {"tile": 8}),
    Case("blocked-4x64", "blocked", (12, 192), blocks(4, 64, 0.4), {"block": [4, 64]}),
    Case("blocked-32x32", "blocked", (96, 160), blocks(32, 32, 0.4), {"block": (32, 32)}),
    Case("blocked-192x96", "blocked", (192, 192), blocks(192, 96, 0.6), {"block": [192, 96]}),
    Case("blocked-64x64", "blocked", (320, 256), blocks(64, 64, 0.4), {"block": [64, 64]}),
    Case("blocked-128x16", "blocked", (256, 144), blocks(128, 16, 0.4), {"block": [128, 16]}),
    Case("blocked-3x5", "blocked", (33, 35), blocks(3, 5, 0.3), {"block": [3, 5]}),
    Case("blocked-1xk", "blocked", (7, 65), blocks(1, 65, 0.5), {"block": [1, 65]}),
    Case("blocked-filled", "blocked", (32, 48), free(0.01), {"block": [16, 16], "fill": True}),
    Case("blocked-kept", "blocked", (32, 48), free(1.0), {"block": [16, 16]}),
    Case("blocked-pruned", "blocked", (32, 48), free(0.0), {"block": [16, 16]}),
    Case("blocked_2_4", "blocked_2_4", (256, 192), both(blocks(64, 64, 0.5), n_of_m(2, 4)), {"block": [64, 64]}),
    Case("blocked_2_4-4x12", "blocked_2_4", (12, 36), both(blocks(4, 12, 0.5), n_of_m(2, 4, 0.7)), {"block": [4, 12]}),
    Case("blocked_2_4-kept", "blocked_2_4", (16, 64), n_of_m(2, 4), {"block": [16, 16]}),
    Case("blocked_2_4-pruned", "blocked_2_4", (32, 48), free(0.0), {"block": [16, 16]}),
    Case("n_m-2:4", "n_m", (37, 100), n_of_m(2, 4), {"n": 2, "m": 4}),
    Case("n_m-1:4-short", "n_m", (16, 20), n_of_m(1, 4, 0.5), {"n": 1, "m": 4}),
    Case("n_m-5:12", "n_m", (23, 84), n_of_m(5, 12), {"n": 5, "m": 12}),
    Case("n_m-3:32-short", "n_m", (71, 96), n_of_m(3, 32, 0.7), {"n": 3, "m": 32}),
    Case("n_m-32:64", "n_m", (17, 128), n_of_m(32, 64), {"n": 32, "m": 64}),
    Case("n_m-7:7", "n_m", (5, 21), n_of_m(7, 7), {"n": 7, "m": 7}),
    Case("n_m-1:1-pruned", "n_m", (3, 11), free(0.0), {"n": 1, "m": 1}),
    Case(
        "n_m-2:4-permuted",
        "n_m",
        (37, 64),
        any_order(n_of_m(2, 4), inputs=True),
        {"n": 2, "m": 4, "input_order": order(64)},
    ),
    Case(
        "n_m-3:7-permuted",
        "n_m",
        (16, 49),
        any_order(n_of_m(3, 7, 0.8), inputs=True),
        {"n": 3, "m": 7, "input_order": order(49)},
    ),
    Case("semi_structured", "semi_structured", (64, 96), n_of_m(2, 4)),
    Case("semi_structured-short", "semi_structured", (13, 36), n_of_m(2, 4, 0.6)),
    Case(
        "semi_structured-permuted",
        "semi_structured",
        (64, 96),
        any_order(n_of_m(2, 4), inputs=True),
        {"input_order": order(96)},
    ),
    Case("ell-1", "ell", (31, 43), same_count(1, 9), {"block": 1}),
    Case("ell-2", "ell", (24, 18), same_count(2, 4), {"block": 2}),
    Case("ell-4", "ell", (36, 28), same_count(4, 3), {"block": 4}),
    Case("ell-kept", "ell", (6, 10), free(1.0), {"block": 2}),
    Case("ell-pruned", "ell", (6, 10), free(0.0), {"block": 2}),
    Case("csr", "csr", (31, 43), free(0.2)),
    Case("csr-empty-rows", "csr", (40, 6), free(0.05)),
    Case("csr-kept", "csr", (9, 11), free(1.0)),
    Case("csr-pruned", "csr", (9, 11), free(0.0)),
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
    """Without a GPU, Triton kernels run in the interpreter; only during these tests, since others expect it to be unsupported.

    Triton decides for each kernel when its module is first imported, which happens inside these tests.
    """
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def hopper() -> None:
    """For kernels that are built for one compute capability alone."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture
def nothing_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No measured launches, of the package's or the user's; what is remembered here is forgotten afterwards.

    Libraries that this machine has are not built again.
    """
    libraries = cuda_library._cache()
    monkeypatch.setattr(cuda_library, "_cache", lambda: libraries)
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    store.tuned_kernel.cache_clear()
    forget_choices()
    yield
    store.tuned_kernel.cache_clear()
    forget_choices()


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """(y, expected in float64): shapes equal, everything written, relative Frobenius error within the table."""

    def check(y: Tensor, expected: Tensor, precision: str | torch.dtype | None = None) -> None:
        assert y.shape == expected.shape
        assert fault_of(y, expected, TOLERANCE[precision or y.dtype]) is None

    return check


@pytest.fixture
def activations() -> Callable[..., Tensor]:
    """(problem, kind) -> X of the problem's shape, dtype and device; (problem, kind, shape): a residual of that shape.

    Kinds are those of `laid_out`.
    """

    def draw(problem: Problem, kind: str = "plain", shape: tuple[int, int] | None = None) -> Tensor:
        return laid_out(torch.randn(shape or problem.x_shape).to(problem.device, problem.dtype), kind)

    return draw


@pytest.fixture
def expected_product() -> Callable[..., Tensor]:
    """(x, format, bias, layout, activation and residual by name) -> Y in float64 from the dense weight."""
    return exact_product


def pytest_report_header() -> str:
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "none, Triton kernels run interpreted"
    return f"kernel tests: GPU {found}; TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET', 'unset')}"


@pytest.fixture(scope="session")
def folder_of_all(tmp_path_factory) -> Path:
    """A folder that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def most_of_the_memory(folder_of_all) -> Iterator[None]:
    """One test at a time, of all processes of this run, takes most of the GPU's memory."""
    with (folder_of_all / "most_of_the_memory").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
