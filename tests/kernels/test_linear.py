"""The package's first lines: a masked Linear, the same as a function, and which kernel runs it."""

import copy
import gc
import weakref

import pytest
import torch
from sparsefront_kernels import (
    KernelEntry,
    Problem,
    SparseLinear,
    best_kernel,
    entry,
    linear,
    mask_structure,
    pack,
    registry,
    sparse_linear,
)
from sparsefront_kernels.registry import Found
from torch import nn

N, K = 64, 96


def tiles(width: int) -> torch.Tensor:
    """Tiles of outputs that keep inputs of their own; every fifth output is pruned."""
    mask = torch.zeros(N, K, dtype=torch.bool)
    rows = [row for row in range(N) if row % 5]
    for start in range(0, len(rows), width):
        kept = torch.randperm(K)[: K // 4]
        mask[torch.tensor(rows[start : start + width])[:, None], kept] = True
    return mask


def windows(n: int, m: int) -> torch.Tensor:
    scores = torch.rand(N, K // m, m)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(2, scores.topk(n, dim=2).indices, True).reshape(N, K)


def blocks(side: int) -> torch.Tensor:
    kept = torch.rand(N // side, K // side) < 0.4
    kept[0, 0], kept[0, 1] = True, False
    return kept.repeat_interleave(side, 0).repeat_interleave(side, 1)


MASKS = {
    "dense": (lambda: torch.ones(N, K, dtype=torch.bool), "dense", {}),
    "blocks of 32": (lambda: blocks(32), "blocked", {"block": [32, 32]}),
    "blocks of 16": (lambda: blocks(16), "blocked", {"block": [16, 16]}),
    "tiles of 16": (lambda: tiles(16), "gathered", {"tile": 16, "drop_empty_outputs": True}),
    "2:4": (lambda: windows(2, 4), "semi_structured", {}),
    "1:4": (lambda: windows(1, 4), "n_m", {"n": 1, "m": 4}),
    "3:32": (lambda: windows(3, 32), "n_m", {"n": 3, "m": 32}),
    "single weights": (lambda: torch.rand(N, K) < 0.3, "csr", {}),
    "nothing kept": (lambda: torch.zeros(N, K, dtype=torch.bool), "blocked", {"block": [32, 32]}),
}


@pytest.mark.parametrize("case", MASKS.values(), ids=MASKS.keys())
def test_structure_of_a_mask_decides_storage(case):
    make, family, parameters = case
    mask = make()
    assert mask_structure(mask) == (family, parameters)
    weight = torch.randn(N, K)
    packed = pack(weight, mask)
    assert packed.family == family and torch.equal(packed.to_dense(), torch.where(mask, weight, 0.0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", MASKS.values(), ids=MASKS.keys())
def test_sparse_linear_is_the_masked_one(case, bias):
    mask = case[0]()
    linear = nn.Linear(K, N, bias=bias)
    layer = SparseLinear.from_masked(linear, mask)
    with torch.no_grad():
        linear.weight.masked_fill_(~mask, 0.0)
    for shape in ((3, K), (2, 5, K), (K,), (0, K)):
        x = torch.randn(*shape)
        torch.testing.assert_close(layer(x), linear(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sparse_linear(x, layer.format, linear.bias), linear(x), rtol=1e-5, atol=1e-5)
    assert layer.kernel_name == f"{case[1]}_reference" or case[1] == "dense"


def test_layer_moves_with_its_weight():
    linear, mask = nn.Linear(K, N), tiles(16)
    layer = SparseLinear.from_masked(linear, mask)
    other = copy.deepcopy(layer).double()
    assert other.weight.dtype == torch.float64 and layer.weight.dtype == torch.float32
    x = torch.randn(4, K)
    torch.testing.assert_close(other(x.double()).float(), layer(x), rtol=1e-5, atol=1e-5)
    assert "kernel=gathered_reference" in repr(layer)


@pytest.mark.parametrize("packs", [False, True], ids=["reads the weight itself", "reads a packed copy"])
def test_unheld_weight_is_freed(packs, monkeypatch):
    plain = entry("gathered_reference")
    packing = {"pack": copy.deepcopy} if packs else {}
    kernel = KernelEntry(name="some", family="gathered", product=plain.run, **packing)
    monkeypatch.setattr(linear, "best_kernel", lambda packed, problem: kernel)
    packed = pack(torch.randn(N, K), tiles(16))
    sparse_linear(torch.randn(4, K), packed)
    assert linear._OPERANDS[packed].keys() == ({"some"} if packs else set()), "what is packed is packed once"
    held = weakref.ref(packed)
    del packed
    gc.collect()
    assert held() is None


@pytest.mark.parametrize(("rows", "expected"), [(1, "few"), (3, "few"), (4, "more"), (64, "more")])
def test_rows_decide_without_a_model(monkeypatch, rows, expected):
    """As on a GPU; of kernels that say nothing the first one runs."""
    more, few, last = (
        KernelEntry(name=name, family="n_m", product=None, requires_cuda=True, fastest_from=first)
        for name, first in (("more", 4), ("few", 1), ("last", 1))
    )
    monkeypatch.setattr(registry, "find", lambda packed, problem, precision: Found([more, few, last], {}))
    monkeypatch.setattr(registry, "_predicted_us", lambda *_: float("inf"))
    problem = Problem(m=rows, k=K, n=N, dtype=torch.float16, device="cuda")
    assert best_kernel(pack(torch.randn(N, K), tiles(16)), problem).name == expected


def test_what_cannot_work_says_why():
    linear, mask = nn.Linear(K, N), torch.rand(N, K) < 0.3
    with pytest.raises(ValueError, match="family='tiled' is not one of blocked, blocked_2_4"):
        SparseLinear.from_masked(linear, mask, family="tiled")
    with pytest.raises(ValueError, match="gathered: tile 0"):
        SparseLinear.from_masked(linear, mask, family="gathered")
    with pytest.raises(ValueError, match="csr_reference: the weight is stored as"):
        SparseLinear.from_masked(linear, tiles(16), kernel="csr_reference")
    with pytest.raises(ValueError, match=r"mask must be bool \[64, 96\] as the weight"):
        SparseLinear.from_masked(linear, mask[:4])
    packed = pack(linear.weight, mask)
    with pytest.raises(
        ValueError, match=r"x must be torch.float32 \[..., 96\] on cpu, as the weight, not torch.float64"
    ):
        sparse_linear(torch.randn(2, K, dtype=torch.float64), packed)
    with pytest.raises(ValueError, match="no kernel can run .*: csr_reference: .*"):
        best_kernel(packed, Problem(m=8, k=K, n=N + 1, dtype=torch.float32, device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["gathered", "n_m", "blocked"])
def test_gpu_chooses_anew_after_a_move(family):
    n = k = 512
    mask = torch.zeros(n, k, dtype=torch.bool)
    mask[:, ::4] = True
    if family == "blocked":
        mask = (torch.rand(n // 64, k // 64) < 0.4).repeat_interleave(64, 0).repeat_interleave(64, 1)
    options = {"gathered": {}, "n_m": {"n": 1, "m": 4}, "blocked": {"block": [64, 64]}}[family]
    linear = nn.Linear(k, n)
    layer = SparseLinear.from_masked(linear, mask, family=family, **options)
    assert layer.kernel_name == f"{family}_reference"
    layer = layer.to("cuda", torch.float16)
    assert layer.kernel_name != f"{family}_reference"
    with torch.no_grad():
        linear.weight.masked_fill_(~mask, 0.0)
    x = torch.randn(128, k)
    expected = linear(x)
    for y in (layer(x.cuda().half()), sparse_linear(x.cuda().half(), layer.format, layer.bias)):
        assert (y.float().cpu() - expected).norm() / expected.norm() < 2e-3
