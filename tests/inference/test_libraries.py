"""Which CUDA libraries are built before a network is searched, as a Hopper GPU would ask; and a machine without a compiler."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import Problem, cuda_library
from torch import nn

from sparsefront.export.packed_layers import pack_layers, store
from sparsefront.inference import libraries
from sparsefront.inference.autotune import find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.precision import Precision
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.masks import Masks

TILES = {"gathered_sm90_cluster", "gathered_sm90_persistent", "gathered_small_m"}
NORMS = {"layer_norm_columns", "layer_norm_rows"}


class Net(nn.Module):
    """Two blocks, and a Linear outside of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(2))
        self.head = nn.Linear(256, 256)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def needed(monkeypatch):
    """needed(pattern, layers) -> the libraries; nothing of CUDA is there, and nothing is built."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(cuda_library, "build", lambda name: pytest.fail("builds"))

    def find(pattern, layers, rows=16, choice="auto", plan=None, precision="none"):
        torch.manual_seed(0)
        net = Net().half().eval()
        masks = {name: pattern.mask(net.get_submodule(name).weight.float().abs(), 0.5) for name in layers}
        for name, mask in masks.items():
            net.get_submodule(name).weight.data.mul_(mask)
        packed = pack_layers(net, Masks(masks), pattern=pattern, sparsity=0.5)
        seen = observe_problems(net.float(), {"x": torch.randn(2, rows, 256)}, layers)
        net.half()
        on_gpu = {
            name: replace(one, problem=replace(one.problem, dtype=torch.float16, device="cuda"))
            for name, one in seen.items()
        }
        return libraries.find_libraries(net, packed, on_gpu, KernelChoice(choice), plan, Precision(precision))

    return find


IN_BLOCKS = ["blocks.0.linear1", "blocks.1.linear1"]


@pytest.mark.parametrize(
    ("pattern", "layers", "expected"),
    [
        (TileWise(128), IN_BLOCKS, TILES | NORMS),
        (TileWise(128), ["head"], TILES | {"csr_sm90"}),
        (BlockWise(64), IN_BLOCKS, TILES | NORMS | {"blocked_sm90"}),
        (NM(2, 4), ["head"], {"n_m_sm90", "n_m_mma", "n_m_small_m", "csr_sm90"}),
    ],
    ids=["tiles in blocks", "tiles", "blocks", "n:m"],
)
def test_libraries_that_formats_use(needed, pattern, layers, expected):
    assert needed(pattern, layers) == expected


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """Neither a compiler nor a library that was built before."""
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_library, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(cuda_library, "compiler", lambda: None)
    cuda_library._warn_once.cache_clear()


def test_unsupported_with_the_reason_logged_once(no_compiler, monkeypatch, caplog):
    """As on a Hopper GPU; asking needs none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    weight, pattern = torch.randn(64, 48), VectorWise(32)
    mask = pattern.mask(weight.abs(), 0.5)
    stored = store(weight, mask, pattern.storage(weight.shape, 0.5))
    problem = Problem(128, 48, 64, torch.float16, "cuda")
    found = find_candidates(
        stored, mask, problem, lambda kernel, layout: kernel.family == "gathered" and kernel.requires_cuda
    )
    assert "gathered_triton" in [candidate.entry.name for candidate in found.usable]
    assert "needs CUDA's compiler nvcc" in found.unsupported["gathered_sm90"]
    said = [record.getMessage() for record in caplog.records if "nvcc" in record.getMessage()]
    assert len(said) == 1, "one line for all libraries"
