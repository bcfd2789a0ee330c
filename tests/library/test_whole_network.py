"""kernel=auto of sf.swap looks at the whole network too; latencies are made up here, since a CPU has none of a GPU."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers
from quick_settings import one_kernel
from torch import nn

import sparsefront as sf
from sparsefront.inference import autotune, layers, whole_network
from sparsefront.inference import swap as swapping
from sparsefront.inference.fusion.plan import BlockReport, FusionPlan, FusionReport
from sparsefront.measure import end_to_end
from sparsefront.measure.correctness import CPU_ROWS, has_low_precision, rows_to_compare

ROUGH = {"rtol": 0.2, "atol": 0.2}  # of products in fp8
X = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Sequential(nn.ReLU(), nn.Linear(64, 32)), nn.Linear(32, 8)).eval()


@pytest.fixture
def net():
    return three_layers()


@pytest.fixture
def forget(monkeypatch):
    """As a process that begins."""
    return lambda: monkeypatch.setattr(whole_network.known_swaps, "_here", {})


@pytest.fixture
def gpu(monkeypatch, tmp_path, forget):
    """gpu(sparse_ms): every network is taken to lie on a GPU, where it takes so long with kernels, and 1 ms without.

    Gives the networks that were timed, each as [dense, with kernels]; and the plans of swaps.
    """

    def pretend(sparse_ms, low_ms=None, **failing):
        seen = SimpleNamespace(timed=[], plans=[], rows=[], told=[])

        def time_networks(dense, sparse, inputs, settings, fuse, low):
            seen.timed.append([[type(part).__name__ for part in one.modules()] for one in (dense, sparse)])
            assert bool(low) == (low_ms is not None)
            torch.testing.assert_close(
                dense(**inputs), sparse(**inputs), **({"rtol": 1e-4, "atol": 1e-5} if not low else ROUGH)
            )
            if failing:
                raise failing["error"]
            latencies = [SimpleNamespace(median_ms=ms) for ms in (sparse_ms, 1.0, low_ms)]
            ways = [SimpleNamespace(name=name, versions=(name,)) for name in ("compile_cuda_graph", "cuda_graph")]
            in_low = SimpleNamespace(latency=latencies[2], execution=ways[1]) if low else None
            dense = SimpleNamespace(latency=latencies[1], execution=ways[1], low=in_low)
            return SimpleNamespace(sparse=latencies[0], execution=ways[0], dense=dense)

        real = swapping.swap_layers

        def swap_layers(*arguments, **more):
            seen.plans.append(more["plan"])
            seen.rows.append(rows_to_compare(torch.empty(CPU_ROWS, 1)))
            return real(*arguments, **more)

        monkeypatch.setattr(swapping, "swap_layers", swap_layers)
        monkeypatch.setattr(swapping, "device_of", lambda net: torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(whole_network, "time_networks", time_networks)
        on_cpu = lambda net, settings: sf.Measure(device="cpu", dtype="fp32")  # noqa: E731
        monkeypatch.setattr(whole_network, "_settings", on_cpu)
        monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
        forget()
        return seen

    return pretend


def swapped(net, seen, **arguments):
    masks = sf.prune(net, "tile_wise", 0.5, granularity=8, layers=["0", "1.1"], tell=len)
    return masks, sf.swap(net, masks, (X,), tell=seen.told.append, **arguments)


@pytest.mark.parametrize(("sparse_ms", "kept"), [(0.5, True), (1.02, True), (1.03, False), (9.0, False)])
def test_slower_network_is_dense_again(net, gpu, sparse_ms, kept):
    seen, parts = gpu(sparse_ms), [*net.train().modules()]
    parameters = dict(net.named_parameters())
    masks, report = swapped(net, seen)
    assert [name.count("SparseLinear") for name in seen.timed[0]] == [0, 2]
    assert [layer.is_sparse for layer in report.layers.values()] == [kept] * 2
    assert (report.sparse_flops_share > 0) == kept
    assert f"the whole network takes {sparse_ms:.3f} ms with kernels, 1.000 ms dense" in "".join(seen.told)
    assert str(report).splitlines()[-1].startswith(f"  the whole network takes {sparse_ms:.3f} ms")
    assert not net.training and not net[2].training
    decided = end_to_end._recall_search(net, "", {"input": X}, whole_network._settings(net, None), None)
    assert (decided and decided["versions"]) == (("compile_cuda_graph",) if kept else None), "what won is what runs"
    if kept:
        assert "SparseLinear" in str(net)
    else:
        assert all(one is other for one, other in zip(net.modules(), parts, strict=True))
        assert all(one is parameters[name] for name, one in net.named_parameters())
        assert 'kernel="sparse" keeps its kernels' in str(report)
        assert all((net.get_submodule(name).weight[~mask] == 0).all() for name, mask in masks.items())


@pytest.mark.parametrize("kernel", ["auto", "sparse"])
def test_network_without_sparse_layers(net, gpu, monkeypatch, kernel):
    seen, dense = gpu(0.5), copy.deepcopy(net)
    real = swapping.swap_layers

    def rewrite_densely(swapped_net, *given, **more):
        report = real(swapped_net, *given, **more | {"plan": FusionPlan()})
        swapped_net[2] = nn.Sequential(swapped_net[2])
        return replace(report, fusion=FusionReport(blocks={"2": BlockReport("row_major", [], 0, 0.0)}))

    monkeypatch.setattr(swapping, "swap_layers", rewrite_densely)
    _, report = swapped(net, seen, kernel=kernel)
    assert not seen.timed and str(net) == str(dense) and report.sparse_flops_share == 0
    assert str(report).splitlines()[-1] == "  no layer is sparse: the dense network is what runs"
    monkeypatch.undo()
    comparison = sf.benchmark(dense, net, (X,), settings=sf.Measure(samples=5), tell=seen.told.append)
    assert (comparison.speedup, comparison.interval) == (1.0, (1.0, 1.0))
    assert comparison.sparse_ms == comparison.dense_ms and "1.00 (no layer is sparse: the dense" in str(comparison)
    smaller = nn.Sequential(nn.Linear(32, 8))
    assert not sf.benchmark(smaller, net, (X,), settings=sf.Measure(samples=5), tell=len).timed.left_dense


@pytest.mark.parametrize(
    ("sparse_ms", "low_ms", "runs"),
    [(0.6, 0.61, "sparse"), (0.7, 0.6, "fp8"), (1.1, 1.2, "dense"), (1.0, 1.2, "sparse")],
)
def test_low_precision_must_beat_dense(gpu, sparse_ms, low_ms, runs):
    seen = gpu(sparse_ms, low_ms)
    net = three_layers().bfloat16()
    masks = sf.prune(net, "tile_wise", 0.5, granularity=8, layers=["0", "1.1"], tell=len)
    report = sf.swap(net, masks, (X.bfloat16(),), precision="fp8", tell=seen.told.append)
    assert [layer.is_sparse for layer in report.layers.values()] == [runs == "sparse"] * 2
    assert has_low_precision(net) == (runs == "fp8"), "these masks have no kernel in fp8"
    against = "1.000 ms dense" if low_ms > 1 else f"{low_ms:.3f} ms dense in fp8"
    assert f"the whole network takes {sparse_ms:.3f} ms with kernels, {against}, as compile" in "".join(seen.told)
    if runs == "fp8":
        assert report.low_precision_layers["0"] == "fp8" and "the head" in report.low_precision_layers["2"]


def test_networks_that_cannot_be_compared(net, gpu):
    seen = gpu(9.0, error=RuntimeError("no memory"))
    _, report = swapped(net, seen)
    assert all(layer.is_sparse for layer in report.layers.values())
    assert "the whole network was not compared with the dense one: RuntimeError: no memory" in "".join(seen.told)

    class Uncopied(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("holds a socket")

    net[2] = Uncopied(32, 8)
    net[0], net[1][1] = nn.Linear(32, 64), nn.Linear(64, 32)
    assert swapped(net, seen)[1].sparse_flops_share > 0 and len(seen.timed) == 1


@pytest.mark.parametrize("later", [False, True], ids=["this process", "a later one"])
def test_same_shapes_reuse_the_search(gpu, forget, tmp_path, monkeypatch, later):
    seen, reports = gpu(9.0), []
    for _ in range(2):
        reports.append(swapped(three_layers(), seen)[1])
        if later:
            forget()
    assert len(seen.timed) == 1 and seen.plans[0] is None
    assert seen.rows[0] is None and len(seen.rows[1]) < CPU_ROWS, "every row was compared once"
    assert set(seen.plans[1].layers.values()) == {"gathered_reference"}, "nothing is chosen again"
    assert reports[0].layers.keys() == reports[1].layers.keys() and reports[1].sparse_flops_share == 0
    assert "as found before" in seen.told[-1]
    other = three_layers()
    masks = sf.prune(other, "tile_wise", 0.5, granularity=16, layers=["0", "1.1"], tell=len)
    sf.swap(other, masks, (X,), tell=len)
    assert len(seen.timed) == 2, "other masks are another search"
    if later:
        for text in ("{", '{"plan"'):
            for file in (tmp_path / "searches").iterdir():
                file.write_text(text)
            swapped(three_layers(), seen)
            forget()
        assert len(seen.timed) == 4, "a file that is damaged is none"
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
        swapped(three_layers(), seen)
        assert len(seen.timed) == 5


def test_layers_without_time_stay_dense(net, gpu):
    seen = gpu(0.5)
    _, report = swapped(net, seen, seconds=0)
    assert not any(layer.is_sparse for layer in report.layers.values()) and not seen.timed
    assert "not tried: about 0 s are needed, 0 s of the search are left" in str(report)
    assert "for at most 0 s" in seen.told[0]
    assert "2 things left out, seconds=0: kernels/0 (not tried" in seen.told[-1]


@pytest.fixture
def tried(monkeypatch):
    """tried: why others than the fastest kernel were not tried for each layer, and whether its kernels were timed."""
    real, tried = layers.autotune_layer, []

    def autotune_layer(layer, candidates, received, timed, **more):
        tuned = real(layer, candidates, received, timed=timed, **more)
        if timed:
            tuned.latencies_us = {"dense_linear": 9.0} | dict.fromkeys(tuned.modules, 5.0)
        tried.append((candidates.unsupported.get("the others"), timed))
        return tuned

    monkeypatch.setattr(layers, "autotune_layer", autotune_layer)
    monkeypatch.setattr(autotune.timed_layers, "_here", {})
    return tried


SHAPES = ((32, 32), (32, 32), (32, 64), (64, 32), (32, 32))
ALIKE = "not tried: gathered_reference was faster in a layer like this one"


def swapped_stack(seen, sparsity=0.5, granularity=8, **arguments):
    net = nn.Sequential(*(nn.Linear(*shape) for shape in SHAPES)).eval()
    masks = sf.prune(net, "tile_wise", sparsity, granularity=granularity, layers="*", tell=len)
    return sf.swap(net, masks, (X,), tell=seen.told.append, kernel=sf.KernelChoice(fuse=False), **arguments)


def test_like_layers_time_fast_kernels_alone(gpu, tried):
    """The largest layers come first; layers that an earlier search timed are not timed again."""
    seen = gpu(0.5)
    report = swapped_stack(seen)
    assert tried == [(None, True)] * 3 + [(ALIKE, True)] * 2 and len(seen.timed) == 1
    assert [*report.layers] == [str(place) for place in range(5)]
    assert all(layer.is_sparse for layer in report.layers.values())
    tried.clear()
    report = swapped_stack(seen)
    assert tried == [(ALIKE, False)] * 5 and len(seen.timed) == 2, "other masks, equal layers"
    assert all(layer.is_sparse and layer.latency_us == 5.0 for layer in report.layers.values())
    for other in ({"sparsity": 0.75}, {"granularity": 16}):
        tried.clear()
        swapped_stack(seen, **other)
        assert [timed for _, timed in tried] == [True] * 5, "another density or tile is another time"


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [True, False], ids=["kernels", "dense"])
def test_decided_execution_is_timed_again(monkeypatch, kept):
    """Conv1D of the dense network is Linear in the swapped one, whose decision needs another search then."""
    swap_layers = swapping.swap_layers
    always = sf.KernelChoice("sparse", name=one_kernel())  # on a tiny network it may be slower than dense
    monkeypatch.setattr(
        swapping,
        "swap_layers",
        lambda net, export, problems, _, **more: swap_layers(net, export, problems, always, **more),
    )
    monkeypatch.setattr(whole_network, "why_dense", lambda sparse_ms, dense_ms: None if kept else "for this test")
    sizes = {"n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
    with torch.device("cuda"):
        dense = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False)).half().eval()
        inputs = {"input_ids": torch.randint(0, 1000, (4, 128))}
    net = copy.deepcopy(dense)
    masks = sf.prune(net, "tile_wise", 0.75, granularity=64, example_inputs=inputs, tell=len)
    told: list[str] = []
    settings = sf.Measure(
        execution_modes=["eager", "cuda_graph"], variants=["fused_qkv", "fused_graph"], samples=5, repeats=1
    )
    report = sf.swap(net, masks, inputs, settings=settings, tell=told.append)
    assert bool(report.sparse_flops_share) == kept
    found = sf.benchmark(dense, net, inputs, settings=settings, tell=told.append)
    assert not any("fails now" in line for line in told)
    if kept:
        decided = next(line for line in told if "ms with kernels" in line)
        assert f"dense, as {found.timed.execution.name} and " in decided and found.timed.execution.known
