"""What the ops of the CUDA kernels do around a launch, on a CPU: a float64 product stands in for the kernel.

It takes only what the kernel takes: aligned rows, whole runs, the kernel's own layout.
"""

import traceback
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from in_layout import InLayout
from random_problems import OCCASIONS, draw
from sparsefront_kernels import SparseLinear, entry
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.gathered import indexed, simt, sm90, small_m
from sparsefront_kernels.operands import RUN_BYTES, run_length
from sparsefront_kernels.problem import LAYOUTS
from sparsefront_kernels.tuning import launches
from torch import Tensor

calls: list[str] = []  # of our functions, down to the last launch
SEEDS = range(2 * len(OCCASIONS))


@dataclass(frozen=True)
class Kernel:
    """name: of the entry and, after `launch_`, of its launch; module: of the kernel."""

    name: str
    module: ModuleType


KERNELS = [
    Kernel("gathered_sm90", sm90),
    Kernel("gathered_simt", simt),
    Kernel("gathered_indexed", indexed),
    Kernel("gathered_small_m", small_m),
]


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def launched(request, monkeypatch):
    """(name of the kernel, the launches it was asked for) with a GPU of 132 SMs pretended."""
    if torch.cuda.is_available():
        pytest.skip("X is transposed in Triton, whose interpreter is off where there is a GPU")
    kernel, asked = request.param, []
    calls.clear()

    def stand_in(x: Tensor, y: Tensor, packed, epilogue, launch, *, y_row_major=False, quick_schedule=False) -> None:
        asked.append(launch)
        calls[:] = [frame.name for frame in traceback.extract_stack() if "sparsefront_kernels" in frame.filename]
        bias, activation, residual = epilogue.bias, epilogue.activation, epilogue.residual
        by_output = kernel.module is not small_m and not y_row_major
        if kernel.module is not small_m:
            assert all(is_aligned(matrix) for matrix in (x, y, residual) if matrix is not None)
            assert x.shape[1] % run_length(x.dtype) == 0
        assert bias is None or (bias.is_contiguous() and bias.dtype != torch.float64)
        assert residual is None or (residual.shape, residual.dtype) == (y.shape, y.dtype)
        rows = x if kernel.module is small_m else x.t()
        k, n = rows.shape[1], y.shape[0 if by_output else 1]
        weight = kernel.module.dense_weight(packed)
        assert weight.shape == (n, k)
        sums = (rows.double() @ weight.double().t())[: y.shape[1 if by_output else 0]]
        product = with_epilogue(
            sums, bias, activation, residual.t() if by_output and residual is not None else residual
        )
        y.copy_(product.t() if by_output else product)

    monkeypatch.setattr(kernel.module, f"launch_{kernel.name}", stand_in)
    monkeypatch.setattr(kernel.module, "library_unsupported_reason", lambda problem, library: None)
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    return kernel.name, asked


def is_aligned(matrix: Tensor) -> bool:
    """Contiguous rows, which begin at whole runs."""
    in_runs = matrix.stride(0) % run_length(matrix.dtype) == 0 and matrix.data_ptr() % RUN_BYTES == 0
    return matrix.stride(1) == 1 and in_runs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_problems(launched, layout, nothing_tuned):
    name, asked = launched
    for seed in SEEDS:
        drawn = draw(InLayout(entry(name), layout), seed, "cpu", largest=150)
        assert not isinstance(drawn, str), drawn
        with poisoned_memory():
            y = drawn.run()
        assert drawn.fault(y) is None
    assert len(asked) > len(SEEDS) // 2  # of a weight that is all pruned, Y needs no product


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_remembered_is_launched(launched, layout, nothing_tuned):
    name, asked = launched
    drawn = draw(InLayout(entry(name), layout), 0, "cpu", largest=150)
    worst = drawn.kernel.tunable.candidates(drawn.packed, drawn.problem)[-1]
    drawn.run()
    drawn.kernel.tunable.remember(drawn.packed, drawn.problem, worst, 1.0)
    drawn.run()
    assert asked[0] != worst == asked[1]


def test_layer_launches_in_six_calls(launched, nothing_tuned):
    name, _ = launched
    drawn = draw(InLayout(entry(name), "feature_major"), 0, "cpu", largest=150)
    layer = SparseLinear(drawn.kernel.kernel, drawn.stored, drawn.bias, "feature_major")
    layer(drawn.x.t())
    called = calls[calls.index("forward") + 1 : -1] if calls[-1] == "stand_in" else calls[calls.index("forward") + 1 :]
    assert called[0] == "product" and len(called) + 1 <= 6, called
