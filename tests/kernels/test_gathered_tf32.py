"""The gathered product in TF32: only where PyTorch's own products may be rounded so, and within its tolerance."""

import random

import pytest
import torch
from in_layout import InLayout
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.launch import LaunchShape
from sparsefront_kernels.gathered.triton import (
    LAUNCHES,
    MOST_CANDIDATES,
    SHARED_BYTES,
    SMALLEST_SHARED_BYTES,
    Tf32Problem,
    candidates,
    pack_for_triton,
    shared_bytes,
)
from sparsefront_kernels.problem import LAYOUTS
from sparsefront_kernels.tuning.launches import chosen_launch

KERNELS = {layout: InLayout(entry("gathered_triton_tf32"), layout) for layout in LAYOUTS}
TOLERANCE = 1e-3
PROBLEMS = [
    Tf32Problem(m, 4096, 4096, tile, 4096 // tile, 2048 * 4096 // tile) for m in (1, 256, 4096) for tile in (8, 32, 128)
]


@pytest.fixture
def allowed():
    """As a user allows it for PyTorch's own products."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def error(y, expected):
    return float(
        torch.nan_to_num(torch.linalg.norm(y.double() - expected) / torch.linalg.norm(expected), nan=torch.inf)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unsupported_unless_the_user_allows_it(layout, cases, device, allowed):
    kernel, stored = KERNELS[layout], cases["gathered-uneven"].build()
    problem = Problem(8, stored.shape[1], stored.shape[0], torch.float32, device, layout)
    assert kernel.dtype_name == "tf32" and kernel.unsupported_reason(stored, problem) is None
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert "fp32_precision" in kernel.unsupported_reason(stored, problem)
    half = Problem(8, stored.shape[1], stored.shape[0], torch.float16, device, layout)
    assert "takes float32, not torch.float16" in kernel.unsupported_reason(stored, half)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weight", ["gathered-uneven", "gathered-128", "gathered-odd-tile", "gathered-pruned"])
def test_product(layout, weight, cases, device, activations, expected_product, poisoned_memory, allowed):
    stored = cases[weight].build().to(device)
    n, k = stored.shape
    problem = Problem(33, k, n, torch.float32, device, layout)
    x, bias = activations(problem, "inside_nan"), torch.randn(n, device=device)
    with poisoned_memory():
        y = KERNELS[layout].run(x, pack_for_triton(stored), bias)
    assert tuple(y.shape) == problem.y_shape
    assert error(y, expected_product(x, stored, bias, layout)) <= TOLERANCE


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_candidates(problem):
    chosen = candidates(problem)
    assert 0 < len(chosen) <= MOST_CANDIDATES and len(set(chosen)) == len(chosen)
    assert all(shared_bytes(launch) <= SHARED_BYTES and launch.block_n == problem.block_n for launch in chosen)
    untuned = candidates(problem, shared_limit=SMALLEST_SHARED_BYTES)[0]
    assert shared_bytes(untuned) <= SMALLEST_SHARED_BYTES


def test_measured_launches_are_found_again(nothing_tuned, monkeypatch, cases):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
    packed = pack_for_triton(cases["gathered-uneven"].build())
    odd = LaunchShape(64, 16, 64, 8, 3)
    LAUNCHES.remember(packed, Problem(64, packed.k, packed.n, torch.float32, "cuda"), odd, 1.0)
    tiles, tile = packed.outputs.shape
    problem = Tf32Problem(64, packed.k, packed.n, tile, tiles, len(packed.kept_inputs) + 1)
    assert chosen_launch(LAUNCHES, problem, "Some GPU", 132) == odd
    assert chosen_launch(LAUNCHES, problem, "Another GPU", 132) != odd


@pytest.mark.gpu
class TestOnGPU:
    @pytest.fixture(autouse=True)
    def ampere(self):
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
            pytest.skip("needs a GPU of compute capability 8.0 or newer")

    @pytest.mark.parametrize("seed", range(60))
    def test_random_problems(self, seed, activations, expected_product, poisoned_memory, allowed):
        torch.manual_seed(seed)
        case = random.Random(seed)
        n, k, tile = case.randint(1, 500), case.randint(1, 700), case.choice([8, 24, 32, 64, 128, 200])
        mask = (torch.rand(-(-n // tile), k, device="cuda") < case.choice([0.1, 0.5, 1.0])).repeat_interleave(tile, 0)[
            :n
        ]
        stored = FORMATS["gathered"].from_dense(torch.randn(n, k, device="cuda"), mask, tile=tile)
        layout = case.choice(LAYOUTS)
        problem = Problem(case.choice([1, 7, 64, 333]), k, n, torch.float32, "cuda", layout)
        x = activations(problem, case.choice(["plain", "inside_nan", "transposed"]))
        with poisoned_memory():
            y = KERNELS[layout].run(x, pack_for_triton(stored), None)
        assert error(y, expected_product(x, stored, None, layout)) <= TOLERANCE

    @pytest.mark.parametrize("tile", [32, 128])
    def test_every_candidate(self, tile, allowed):
        from sparsefront_kernels.gathered.triton_spmm import launch_gathered_triton

        mask = (torch.rand(512 // tile, 700, device="cuda") < 0.4).repeat_interleave(tile, 0)
        stored = FORMATS["gathered"].from_dense(torch.randn(512, 700, device="cuda"), mask, tile=tile)
        packed, x = pack_for_triton(stored), torch.randn(700, 1000, device="cuda")
        names = ("values", "kept_inputs", "tile_offsets", "order", "outputs", "consecutive")
        common = {name: getattr(packed, name) for name in names} | {
            "bias": None,
            "residual": None,
            "activation": "none",
        }
        problem = Problem(1000, 700, 512, torch.float32, "cuda", "feature_major")
        for launch in LAUNCHES.candidates(packed, problem):
            y = torch.full((512, 1000), torch.nan, device="cuda")
            launch_gathered_triton(x.t(), y.t(), tf32=launch, **common)
            assert 1e-6 < error(y, stored.to_dense().double() @ x.double()) <= TOLERANCE, launch
