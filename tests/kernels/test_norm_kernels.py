"""Which kernel normalizes columns: what each takes, which is in use, and the Hopper kernel in all of its divisions."""

import pytest
import torch
from sparsefront_kernels import cuda_library
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.device_support import unloadable_reason
from sparsefront_kernels.norm import (
    add_layer_norm_columns,
    add_layer_norm_columns_reference,
    layer_norm,
    layer_norm_columns,
    layer_norm_columns_reference,
)
from sparsefront_kernels.norm.layer_norm import CUDA_DIVISIONS, LAUNCHES, TRITON, NormLaunch, NormProblem

NOTHING = {"weight": None, "bias": None, "x_bias": None, "residual": None, "sums": None}
LIMIT = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
CPU = torch.device("cpu")
CUDA = NormLaunch("cuda", cluster=1, columns=32, threads=512)


@pytest.fixture
def cuda_reference(monkeypatch):
    """The Hopper kernel takes operands on a CPU, where plain PyTorch stands in; the list holds the launches that ran."""
    ran = []

    def launch(launch, x, y, weight, bias, eps, *, x_bias=None, residual=None, sums=None):
        ran.append(launch)
        if residual is not None:
            normed, total = add_layer_norm_columns_reference(x, x_bias, residual, weight, bias, eps)
        else:
            normed, total = layer_norm_columns_reference(x, weight, bias, eps), None
        y.copy_(normed)
        if sums is not None:
            sums.copy_(total)

    monkeypatch.setattr(layer_norm, "launch_cuda_norm", launch)
    monkeypatch.setattr(layer_norm, "unloadable_reason", lambda device, library: None)
    return ran


def remember(x, launch, residual=None, keep_sums=False):
    return LAUNCHES.record(NormProblem.of(x, residual, keep_sums), launch, 1.0, "")


@pytest.mark.parametrize("launch", CUDA_DIVISIONS, ids=str)
def test_operands_left_to_triton(launch, cuda_reference):
    x = torch.randn(64, 16, dtype=torch.float16)
    wide = torch.randn(64, dtype=torch.float64)
    most = CUDA_DIVISIONS[launch]
    assert layer_norm.unsupported_reason(launch, x, **NOTHING) is None
    assert layer_norm.unsupported_reason(launch, torch.randn(most, 8, dtype=torch.float16), **NOTHING) is None
    for operands, reason in (
        ({"x": x.float()}, "takes float16 or bfloat16"),
        ({"x": x[:, :13]}, "takes columns in eights, not 13"),
        ({"x": x[:, :0]}, "takes columns in eights, not 0"),
        ({"x": torch.randn(16, 64, dtype=torch.float16).t()}, "needs a feature-major x"),
        ({"x": torch.randn(64, 20, dtype=torch.float16)[:, :16]}, "needs a feature-major x"),
        ({"x": torch.randn(64, 24, dtype=torch.float16)[:, 1:17]}, "needs a feature-major x"),
        ({"x": torch.randn(most + 1, 8, dtype=torch.float16)}, f"takes up to {most} features"),
        ({"x": x, "weight": wide}, "takes no weight of torch.float64"),
        ({"x": x, "residual": x, "x_bias": wide}, "takes no x_bias of torch.float64"),
        ({"x": x, "x_bias": wide.float()}, "only where there is a residual"),
        ({"x": x, "sums": x}, "only where there is a residual"),
        ({"x": x, "residual": torch.randn(16, 64, dtype=torch.float16).t()}, "needs a feature-major residual"),
    ):
        operands = NOTHING | operands
        assert reason in layer_norm.unsupported_reason(launch, operands.pop("x"), **operands)
        assert layer_norm.unsupported_reason(TRITON, x, **operands) is None


def test_library_that_cannot_be_built(monkeypatch):
    """The op then runs Triton's kernel, and does not fail."""

    def fails(name):
        raise cuda_library.BuildFailed("layer_norm_columns: its build failed: no\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda_library, "unavailable_reason", lambda name: None)
    monkeypatch.setattr(cuda_library, "load", fails)
    reason = unloadable_reason.__wrapped__(torch.device("cuda"), layer_norm.LIBRARY)
    assert reason == "layer_norm_columns: its build failed: no"


@pytest.mark.usefixtures("nothing_tuned")
def test_measured_launch_runs(cuda_reference):
    x, bias = torch.randn(64, 16, dtype=torch.float16), torch.randn(64)
    remember(x, CUDA)
    y = layer_norm_columns(x, None, bias, 1e-6)
    assert cuda_reference == [CUDA]
    assert torch.equal(y, layer_norm_columns_reference(x, None, bias, 1e-6))
    odd = torch.randn(64, 13, dtype=torch.float16)  # the nearest measurement, of a kernel that does not take it
    assert layer_norm.launch_in_use(odd, **NOTHING) == TRITON
    layer_norm_columns(odd, None, bias, 1e-6)
    assert cuda_reference == [CUDA]


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("launch", [TRITON, *CUDA_DIVISIONS], ids=str)
@pytest.mark.parametrize(
    ("d", "m"),
    [(1, 8), (7, 104), (100, 16), (257, 24), (768, 200), (1000, 72), (1024, 9000), (1100, 40), (2047, 88), (2048, 16)],
)
def test_every_kernel_agrees_with_the_reference(d, m, launch, monkeypatch):
    """Columns in eights, features that fill no block, one tile and many, windows of wider rows; twice the same bits."""
    if d > CUDA_DIVISIONS.get(launch, d):
        pytest.skip("more features than the division holds")
    monkeypatch.setattr(layer_norm, "launch_in_use", lambda x, **operands: launch)
    dtype = (torch.float16, torch.bfloat16)[d % 2]
    x, residual = ((torch.randn(d, m + 8, device="cuda", dtype=dtype) + 1)[:, :m] for _ in range(2))
    weight, bias, x_bias = torch.randn(d, device="cuda", dtype=dtype), *torch.randn(2, d, device="cuda")
    for vectors in ({"weight": weight, "bias": bias}, {"weight": None, "bias": bias}, {"weight": weight, "bias": None}):
        assert layer_norm.unsupported_reason(launch, x, **vectors) is None
        with poisoned_memory():
            y, again = (layer_norm_columns(x, *vectors.values(), 1e-6) for _ in range(2))
        assert_right(y, layer_norm_columns_reference(x.double(), *map(wide, vectors.values()), 1e-6))
        assert torch.equal(y, again)
    for added in (x_bias, None):
        sums = add_layer_norm_columns_reference(x, added, residual, weight, bias, 1e-6)[1]
        truth = layer_norm_columns_reference(sums.double(), wide(weight), wide(bias), 1e-6)
        for keep in (True, False):
            assert (
                layer_norm.unsupported_reason(launch, x, weight=weight, bias=bias, x_bias=added, residual=residual)
                is None
            )
            with poisoned_memory():
                y, found = add_layer_norm_columns(x, added, residual, weight, bias, 1e-6, keep)
                again, _ = add_layer_norm_columns(x, added, residual, weight, bias, 1e-6, keep)
            assert_right(y, truth)
            assert torch.equal(y, again)
            if keep:
                assert_right(found, sums.double())


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("launch", [TRITON, *CUDA_DIVISIONS], ids=str)
def test_graph_replay_equals_eager(launch, monkeypatch):
    """Also on operands that were refilled after the recording, one norm reading what the one before wrote."""
    monkeypatch.setattr(layer_norm, "launch_in_use", lambda x, **operands: launch)
    x, residual = torch.randn(2, 768, 1000, device="cuda", dtype=torch.float16)
    weight, bias = torch.randn(2, 768, device="cuda", dtype=torch.float16)

    def two():
        first, sums = add_layer_norm_columns(x, bias, residual, weight, bias, 1e-6, True)
        return add_layer_norm_columns(first, None, sums, weight, bias, 1e-6, False)[0]

    two()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = two()
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(replayed, two())


def wide(vector):
    return None if vector is None else vector.double()


def assert_right(found, truth):
    limit = LIMIT[found.dtype]
    assert torch.allclose(found.double(), truth, rtol=limit, atol=limit)
