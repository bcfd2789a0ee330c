"""QuACK as a kernel and as a peer, on a CPU: what it documents, computed in float64, stands in for its grouped GEMM."""

import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from in_layout import InLayout
from random_problems import OCCASIONS, draw, exact_product
from sparsefront_kernels import Problem, entry, find
from sparsefront_kernels.bench.baselines import quack
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.peers import PEERS
from sparsefront_kernels.bench.problems import Setting, Shape
from sparsefront_kernels.bench.provider import checked
from sparsefront_kernels.gathered import quack as gathered_quack
from sparsefront_kernels.gathered.quack import (
    K_BLOCK,
    QuackLaunch,
    QuackProblem,
    candidates,
    dense_weight,
    pack_for_quack,
    problem_unsupported_reason,
)
from sparsefront_kernels.tuning import launches

NAME = "gathered_quack"
CPU = torch.device("cpu")
HELD = (
    "gathered-uneven",
    "gathered-128",
    "gathered-wide",
    "gathered-kept",
    "gathered-shuffled-uneven",
    "gathered-filled",
)
EMPTY = ("gathered-pruned", "gathered-pruned-held")


@pytest.fixture
def asked(monkeypatch, nothing_tuned):
    """The launches that the stand-in was asked for, with a GPU of 132 SMs pretended."""
    found = []

    def stand_in(a, b, out, *, offsets, kept, order, launch):
        """out[g] = A[:, A_idx[g's]] · B[g's], with every condition that QuACK sets."""
        found.append((launch, order is not None))
        groups, m, n = out.shape
        assert a.dtype == b.dtype == out.dtype and offsets.dtype == kept.dtype == torch.int32
        assert a.shape[0] == m and a.stride(0) == 1 and a.stride(1) % 8 == m % 8 == 0 and a.data_ptr() % 16 == 0
        assert b.shape == (len(kept), n) and b.is_contiguous() and n % 8 == 0 and len(kept) > 0
        assert out.stride(1) == 1 and out.stride(2) % 8 == 0 and offsets.shape == (groups + 1,)
        counts = offsets.diff()
        assert (counts % K_BLOCK == 0).all() and int(offsets[-1]) == len(kept)
        if order is not None:
            assert order.dtype == torch.int32 and sorted(order.tolist()) == list(range(groups))
            assert (counts[order.long()].diff() <= 0).all()
        for group, (start, stop) in enumerate(pairwise(offsets.tolist())):
            gathered = a[:, kept[start:stop].long()].double()
            out[group] = (gathered @ b[start:stop].double()).to(out.dtype)

    monkeypatch.setattr(gathered_quack, "grouped_gemm", stand_in)
    monkeypatch.setattr(
        gathered_quack,
        "problem_unsupported_reason",
        lambda problem: None if problem.dtype.itemsize == 2 else "takes 16 bits",
    )
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    return found


def stored_and_problem(cases, weight, m=24, dtype=torch.float16):
    stored = cases[weight].build().to(CPU, dtype)
    return stored, Problem(m, stored.shape[1], stored.shape[0], dtype, CPU, "feature_major")


def test_random_problems(asked):
    for seed in range(2 * len(OCCASIONS)):
        drawn = draw(InLayout(entry(NAME), "feature_major"), seed, "cpu", largest=150)
        assert not isinstance(drawn, str), drawn
        with poisoned_memory():
            y = drawn.run()
        assert drawn.fault(y) is None
    assert len(asked) >= len(OCCASIONS)


@pytest.mark.parametrize("m", [1, 8, 13])
@pytest.mark.parametrize("weight", HELD + EMPTY)
def test_every_kind_of_weight(asked, cases, weight, m):
    stored, problem = stored_and_problem(cases, weight, m)
    kernel = entry(NAME)
    if reason := kernel.unsupported_reason(stored, problem):
        pytest.skip(reason)
    x, bias = torch.randn(problem.x_shape).half(), torch.randn(problem.n)
    with poisoned_memory():
        y = kernel.run(x, kernel.pack(stored), bias)
    exact = exact_product(x, stored, bias, "feature_major")
    assert y.shape == problem.y_shape and y.is_contiguous()
    assert torch.linalg.norm(y.double() - exact) <= 1e-3 * torch.linalg.norm(exact)
    assert bool(asked) == (weight not in EMPTY), "nothing is multiplied where nothing is kept"


def test_what_is_remembered_is_launched(asked, cases):
    stored, problem = stored_and_problem(cases, "gathered-uneven")
    kernel = entry(NAME)
    packed, x = kernel.pack(stored), torch.randn(problem.x_shape).half()
    offered = kernel.tunable.candidates(packed, problem)
    kernel.run(x, packed, None)
    kernel.tunable.remember(packed, problem, offered[-1], 1.0)
    kernel.run(x, packed, None)
    assert [launch for launch, _ in asked] == [offered[0], offered[-1]]
    assert [ordered for _, ordered in asked] == [True, False], "the last one leaves the tiles in their order"


def test_launches_worth_timing():
    large = QuackProblem(4096, 4096, 4096, 128, 11, 14_000, uneven=True)
    found = candidates(large, 132)
    assert found[0] == QuackLaunch(256, 128, False), "the fastest of equal tiles"
    assert len(set(found)) == len(found) and {launch.cluster_m for launch in found} == {1, 2}
    assert {launch.longest_first for launch in found} == {True, False}
    even = candidates(QuackProblem(4096, 4096, 4096, 128, 64, 64 * 2048, uneven=False), 132)
    assert {launch.longest_first for launch in even} == {False} and {launch.tile_n for launch in even} == {128}
    assert {launch.tile_n for launch in candidates(QuackProblem(256, 64, 64, 128, 2, 128, uneven=False), 132)} == {
        64,
        128,
    }
    for width, tile_n in ((8, 16), (32, 32), (64, 64), (96, 128), (256, 128)):
        assert candidates(QuackProblem(1 << 16, 64, 64, width, 99, 128, uneven=False), 132)[0].tile_n == tile_n


@pytest.mark.parametrize("weight", HELD + EMPTY)
def test_tables_hold_the_weight(cases, weight):
    stored = cases[weight].build()
    if stored.tile % 8:
        pytest.skip("no group")
    packed = pack_for_quack(stored)
    assert torch.equal(dense_weight(packed), stored.to_dense())
    counts, own = packed.offsets.diff(), stored.tile_offsets.diff()
    assert ((counts >= own) & (counts < own + K_BLOCK) & (counts % K_BLOCK == 0)).all(), (
        "no k-block more than there was"
    )
    assert (packed.order is None) == (len(counts.unique()) <= 1)
    for tile, (start, stop) in enumerate(pairwise(packed.offsets.tolist())):
        inputs = stored.kept_inputs[stored.tile_offsets[tile] : stored.tile_offsets[tile + 1]]
        listed = packed.kept[start:stop]
        assert torch.equal(listed[: len(inputs)], inputs) and listed.unique().tolist() == inputs.tolist()
        assert not packed.panels[start + len(inputs) : stop].any()
    last = len(stored.output_index) % stored.tile
    if last and stored.tiles:
        assert not packed.panels[packed.offsets[-2] :, last:].any(), "the narrow tile is filled up with zeros"


def test_gradient_of_x(asked, cases):
    stored, problem = stored_and_problem(cases, "gathered-uneven")
    kernel = entry(NAME)
    x, bias = torch.randn(problem.x_shape).half().requires_grad_(), torch.randn(problem.n).half().requires_grad_()
    y = kernel.run(x, kernel.pack(stored), bias)
    dy = torch.randn_like(y)
    dx, dbias = torch.autograd.grad(y, (x, bias), dy)
    exact = stored.to_dense().double().t() @ dy.double()
    assert torch.linalg.norm(dx.double() - exact) <= 2e-3 * torch.linalg.norm(exact)
    assert torch.allclose(dbias.float(), dy.float().sum(dim=1), rtol=1e-2, atol=1e-2)
    packed = kernel.pack(stored)
    with pytest.raises(ValueError, match="panels has no gradient"):
        kernel.run(x, type(packed)(**{**vars(packed), "panels": packed.panels.clone().requires_grad_()}), None)


@pytest.mark.parametrize("weight", ["gathered-uneven", "gathered-kept"])
def test_opcheck(asked, cases, weight):
    stored, problem = stored_and_problem(cases, weight)
    packed = entry(NAME).pack(stored)
    x, bias = torch.randn(problem.x_shape).half(), torch.randn(problem.n)
    torch.library.opcheck(torch.ops.sparsefront.gathered_quack.default, (x, *vars(packed).values(), bias, True, True))


def pretend_gpu(monkeypatch, capability=(9, 0)):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def missing(monkeypatch, package):
    real = gathered_quack.importlib.util.find_spec
    monkeypatch.setattr(
        gathered_quack.importlib.util,
        "find_spec",
        lambda name: None if name == package else real(name) or SimpleNamespace(),
    )


def test_reasons_on_a_cpu(cases):
    stored, problem = stored_and_problem(cases, "gathered-uneven")
    assert find(stored, problem).unsupported[NAME] == "needs a CUDA device, not cpu"
    stored, problem = stored_and_problem(cases, "gathered-uneven", dtype=torch.float32)
    assert find(stored, problem).unsupported[NAME] == "takes float16 or bfloat16, not torch.float32"
    stored, problem = stored_and_problem(cases, "gathered-tile4")
    assert find(stored, problem).unsupported[NAME] == "takes tiles whose outputs are a multiple of 8, not 4"
    with pytest.raises(ValueError, match="takes tiles whose outputs are a multiple of 8, not 4"):
        pack_for_quack(stored)


@pytest.mark.parametrize(
    ("package", "reason"),
    [("quack", "quack-kernels is not installed"), ("cutlass", "nvidia-cutlass-dsl is not installed")],
)
def test_reason_where_a_package_is_absent(monkeypatch, package, reason):
    pretend_gpu(monkeypatch)
    missing(monkeypatch, package)
    problem = Problem(8, 8, 8, torch.float16, torch.device("cuda"), "feature_major")
    assert problem_unsupported_reason(problem) == f"{reason}: it comes with sparsefront's extra `quack`"
    assert PEERS["quack_compact"].unsupported_reason("fp16", 0.5) == problem_unsupported_reason(problem), (
        "the peer says the same"
    )
    assert PEERS["quack_compact"].unsupported_reason("fp32", 0.5) == "it gathers 16-bit types alone"


def test_reasons_of_other_gpus_and_of_a_broken_installation(monkeypatch):
    problem = Problem(8, 8, 8, torch.float16, torch.device("cuda"), "feature_major")
    pretend_gpu(monkeypatch, (10, 0))
    assert problem_unsupported_reason(problem) == "was tried on compute capability 9.0 alone, this GPU has 10.0"
    pretend_gpu(monkeypatch)
    missing(monkeypatch, "nothing")

    def broken():
        raise OSError("libcute.so: not found\nin all places")

    gathered_quack._import_error.cache_clear()
    monkeypatch.setattr(gathered_quack, "_modules", broken)
    assert problem_unsupported_reason(problem) == "quack-kernels cannot be imported: libcute.so: not found"
    gathered_quack._import_error.cache_clear()


def test_the_call_of_quack(monkeypatch):
    """Names of arguments and of settings as QuACK 0.6.5 has them."""
    calls = []
    tuned = SimpleNamespace(fn=lambda *operands, **settings: calls.append((operands, settings)))
    monkeypatch.setitem(sys.modules, "quack", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", SimpleNamespace(gemm_tuned=tuned))
    monkeypatch.setitem(sys.modules, "quack.gemm_config", SimpleNamespace(GemmConfig=lambda **settings: settings))
    a, b, out, offsets, kept = (torch.zeros(1) for _ in range(5))
    launch = QuackLaunch(256, 128, True, cluster_m=2)
    gathered_quack.grouped_gemm(a, b, out, offsets=offsets, kept=kept, order=None, launch=launch)
    ((operands, settings),) = calls
    assert operands == (a, b, out) and settings.keys() == {"cu_seqlens_k", "A_idx", "batch_idx_permute", "config"}
    assert settings["cu_seqlens_k"] is offsets and settings["A_idx"] is kept and settings["batch_idx_permute"] is None
    assert settings["config"] == {
        "tile_m": 256,
        "tile_n": 128,
        "pingpong": True,
        "is_dynamic_persistent": False,
        "cluster_m": 2,
        "cluster_n": 1,
    }


@pytest.mark.parametrize("m", [16, 13])
def test_the_peer_multiplies_by_our_weight(asked, cases, m):
    stored = cases["gathered-uneven"].build().to(CPU, torch.float16)
    n, k = stored.shape
    setting = Setting(Shape("small", m, k, n), "fp16", 0.5, CPU)
    drawn = DrawnWeight(
        "tile_wise", 16, "pattern", "seed=0", setting, {"gathered": stored}, setting.reference(stored.to_dense()), 0.5
    )
    found = quack.providers(setting, drawn)
    assert len(found) == len(candidates(QuackProblem.of(pack_for_quack(stored), m), 1)) > 6
    for one in found:
        assert checked(one) < 1e-3
        y = one.calls(1)[0]()
        assert y.shape == (stored.tiles * 16, 16), "compact: pruned outputs are left out, the last tile is filled up"
        assert (one.kernel, one.family, one.pattern) == ("quack_compact", "quack", "tile_wise")
        assert (one.distribution, one.granularity, one.mask_settings) == ("pattern", 16, "seed=0")
        assert one.sparsity == drawn.sparsity and one.layout == "feature_major"
    assert len({launch for launch, _ in asked}) == len(found), "each its own launch"
