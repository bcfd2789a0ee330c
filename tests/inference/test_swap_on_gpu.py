"""On a GPU kernels are chosen by time, and sparse networks live in graphs and compiled code."""

import copy
import gc

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

import sparsefront as sf
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.network_modules import release_formats
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.correctness import output_error
from sparsefront.measure.execution_mode import EXECUTION_MODES, fastest_execution_mode
from sparsefront.measure.memory import resident_bytes
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.timers import time_layer
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
PATTERNS = {
    "element_wise": ElementWise(),
    "n_m": NM(2, 4),
    "n_m-permuted": NM(2, 4, permutation="search", permutation_rounds=3),
    "n_m-transposable": NM(transposable=True),
    "shuffled_block": ShuffledBlock(32),
    "tew": TileWise(64, element_overlay=0.02),
    "vector_wise": VectorWise(32),
    "block_wise": BlockWise(32),
    "tile_wise": TileWise(64),
}
USES_CUSPARSE = ("element_wise", "tew")
FEW = ("tile_wise", "n_m", "element_wise")  # patterns that have little in common
ROUNDING = 64 * 512  # bytes: the allocator gives out multiples of 512 to each of a few tensors


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


def mlp():
    torch.manual_seed(0)
    return Mlp().eval()


def case(exported, pattern, choice, dtype=torch.float16):
    """(masked on the GPU, inputs, swap), where swap() -> (sparse network, report)."""
    masked = mlp()
    export = exported(masked, pattern, 0.5, ["up", "down"])
    masked.to(CUDA, dtype)
    inputs = {"x": torch.randn(8, 128, 256, device=CUDA, dtype=dtype)}
    problems = observe_problems(masked, inputs, ["up", "down"])

    def swap():
        net = mlp()
        return net, swap_layers(net, export, problems, choice, device=CUDA, dtype=dtype)

    return masked, inputs, swap


def assert_fastest_and_right(net, report, masked, inputs):
    for layer in report.layers.values():
        assert layer.is_sparse and layer.latency_us > 0
        assert layer.latency_us == min(us for kernel, us in layer.candidates.items() if kernel != "dense_linear")
    limits = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
    with torch.inference_mode():
        assert output_error(net(**inputs), masked(**inputs)) < limits[inputs["x"].dtype]


def allocated():
    """Bytes that live tensors occupy, without the workspaces that cuBLAS keeps for each stream."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def assert_occupies_its_bytes(swap):
    """Candidates, graphs and the dense weights of sparse layers are gone; what a kernel packed is there once.

    Not of the first swap, during which libraries make what they keep.
    """
    before = allocated()
    net = swap()[0]
    release_formats(net)
    occupied, expected = allocated() - before, resident_bytes(net, CUDA)
    assert expected <= occupied <= expected + ROUNDING


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("pattern", FEW)
def test_fastest_sparse_kernel_agrees(pattern, dtype, exported):
    masked, inputs, swap = case(exported, PATTERNS[pattern], KernelChoice("sparse"), dtype)
    assert_fastest_and_right(*swap(), masked, inputs)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sparse_network_in_every_mode(pattern, exported):
    masked, inputs, swap = case(exported, PATTERNS[pattern], KernelChoice("sparse"))
    net, report = swap()
    assert_fastest_and_right(net, report, masked, inputs)
    modes = [mode for mode in EXECUTION_MODES if not mode.startswith("max_autotune")]  # it tunes dense products only
    found = fastest_execution_mode(net, inputs, execution_modes=modes, device=CUDA, dtype=torch.float16)
    with torch.inference_mode():
        assert output_error(found.call(), masked(**inputs)) < 2e-2
    if pattern not in USES_CUSPARSE:  # cuSPARSE may allocate by itself, which a capture forbids
        assert found.not_timed == {}
        assert_occupies_its_bytes(swap)


@pytest.mark.parametrize("pattern", FEW)
def test_auto_takes_the_fastest_dense_included(pattern, exported):
    _, _, swap = case(exported, PATTERNS[pattern], KernelChoice())
    net, report = swap()
    for name, layer in report.layers.items():
        assert "dense_linear" in layer.candidates
        assert layer.latency_us == min(layer.candidates.values())
        assert isinstance(net.get_submodule(name), SparseLayer) == layer.is_sparse
        assert (name in report.dense_layers) != layer.is_sparse
    if pattern == "tile_wise":
        assert_occupies_its_bytes(swap)


def test_times_are_of_the_device():
    small, large = (nn.Linear(width, width, device=CUDA, dtype=torch.float16).eval() for width in (256, 8192))
    x = {layer: torch.randn(512, layer.in_features, device=CUDA, dtype=torch.float16) for layer in (small, large)}
    times = {layer: time_layer(layer, x[layer]) for layer in (small, large)}
    assert all(found.eager_because is None for found in times.values())
    assert 0.5 < times[small].latency_us < times[large].latency_us


def test_uncaptured_network_is_timed_by_launches():
    class Waits(nn.Linear):
        def forward(self, x):
            torch.cuda.synchronize()
            return super().forward(x)

    layer = Waits(256, 256, device=CUDA).eval()
    found = time_layer(layer, torch.randn(64, 256, device=CUDA))
    assert found.latency_us > 0 and "cannot be recorded" in found.eager_because
    # the failed recording must leave nothing behind: neither a stream nor a generator in recording mode
    assert time_layer(nn.Linear(256, 256, device=CUDA), torch.randn(64, 256, device=CUDA)).eager_because is None


FEW_ROWS = {  # kernel -> pattern that it runs, and the rows for which it is chosen
    "gathered_small_m": (TileWise(64), 64),
    "gathered_2_4_filled_small_m": (Tile24(64), 64),
    "n_m_mma": (NM(2, 4), 64),
    "n_m_small_m": (NM(2, 4), 64),
    "ell_small_m": (Uniform(1), 16),
}
FASTEST = {
    **PATTERNS,
    "uniform": Uniform(1),
    "block_wise-64": BlockWise(64),
    "block_2_4": Block24(),
    "tile_2_4": Tile24(),
}
CHOSEN_FOR = [(kernel, *problem) for kernel, problem in FEW_ROWS.items()]
CHOSEN_FOR += [pytest.param("sparse", FASTEST[name], 16, id=name) for name in FASTEST]


@pytest.mark.parametrize(("kernel", "pattern", "rows"), CHOSEN_FOR)
def test_kernels_take_any_number_of_rows(kernel, pattern, rows):
    net = mlp().to(CUDA, torch.float16)
    masks = sf.prune(net, pattern, 0.5 if isinstance(pattern, NM) else 0.6, layers=["up", "down"], tell=len)
    masked, x = copy.deepcopy(net), torch.randn(4097, 256, device=CUDA, dtype=torch.float16)
    report = sf.swap(net, masks, (x[:rows],), kernel=kernel, seconds=20, tell=len)
    assert all(layer.is_sparse for layer in report.layers.values()), [one.unsupported for one in report.layers.values()]
    with torch.inference_mode():
        for m in (65, 120, 4097):
            assert output_error(net(x[:m]), masked(x[:m])) < 5e-3
        # those that are named split many rows, which compiled code has to see
        modes = ["cuda_graph"] if kernel == "sparse" else ["cuda_graph", "compile_cuda_graph"]
        settings = {"execution_modes": modes, "device": CUDA, "dtype": torch.float16}
        recorded = fastest_execution_mode(net, {"x": x[:120]}, **settings)
        if not {"csr_torch", "gathered_overlay_composed"} & report.kernels.keys():  # cuSPARSE may allocate by itself
            assert recorded.not_timed == {}
        assert output_error(recorded.call(), masked(x[:120])) < 2e-2
