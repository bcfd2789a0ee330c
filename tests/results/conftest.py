"""Results made up for the tests of the report, and a browser that shows their page."""

import random
from collections.abc import Callable
from itertools import islice, product

import pytest
from headless_browser import headless_page

from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.record import Choice, Cost, Identity, Kernels, Quality, Result, Size, Sparsity, Speed


def made_up_result() -> Result:
    """A run on a CPU with every kind of field filled, and text that is awkward in CSV and HTML."""
    made = {"run_id": "run-0", "time": "2026-01-02T03:04:05+00:00", "config_hash": "0123456789abcdef", "seed": 3}
    parts = {"model": "vit_small", "dataset": "digits", "pattern": "tile_wise", "importance": "magnitude"}
    awkward = 'too small: 4 < 8, "so it stays",\n<dense>'
    kernel = {"chosen": "gathered_reference", "latency_us": 120.5, "unsupported": {"csr": "no"}}
    dense = {"latency_dense_ms": 5.25, "latency_dense_p20_ms": 5.0, "latency_dense_p80_ms": 5.5}
    sparse = {"latency_sparse_ms": 3.5, "latency_sparse_p20_ms": 3.25, "latency_sparse_p80_ms": 3.75}
    timed = {"latency_device": "cpu", "latency_kernel": "reference", "batch_size": 64, "dtype": "fp32"}
    modes = {"execution_mode_dense": "eager", "execution_mode_sparse": "eager"}
    return Result(
        identity=Identity(**made, python="3.11.7", torch_version="2.15.0"),
        choice=Choice(**parts, pattern_parameters={"granularity": 128}, granularity=128, recovery="finetune"),
        sparsity=Sparsity(
            sparsity_target=0.75,
            sparsity_achieved=0.7421875,
            sparsity_per_layer={"block.0.fc1": 0.8, "block.0.fc2": 0.0},
            dense_layers={"block.0.fc2": awkward},
        ),
        quality=Quality(
            metric_name="accuracy", dense=0.98, masked=0.97, sparse=0.97, extra_metrics={"dense": {"f1": 0.5}}
        ),
        speed=Speed(
            **(dense | sparse | timed | modes),
            **{"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6},
            variants_not_timed={"cuda_graph": "needs a CUDA device"},
        ),
        size=Size(weight_bytes_dense=4_000_000, weight_bytes_sparse=1_500_000),
        kernels=Kernels(kernel_per_layer={"block.0.fc1": kernel}, sparse_layer_share=0.5, sparse_flops_share=0.5),
        cost=Cost(train_dense_seconds=12.0, prune_seconds=0.1, dense_reused=True),
    )


EXACT = {f"val_{side}_standard_error" for side in ("dense", "dense_continued", "dense_distilled", "masked", "sparse")}


@pytest.fixture
def make_result() -> Callable[..., Result]:
    """The made-up result with some fields replaced, by field name; held-out metrics are exact."""

    def make(**changes: object) -> Result:
        held_out = [name for name in changes if name.startswith("val_") and f"{name}_standard_error" in EXACT]
        return made_up_result().with_values({f"{name}_standard_error": 1e-15 for name in held_out} | changes)

    return make


PATTERNS = {
    "tile_wise": (128, 64),
    "vector_wise": (32, 4),
    "block_wise": (64, "4x64"),
    "n_m": (None,),
    "uniform": (None,),
}
SPARSITIES = (0.5, 0.75, 0.9, 0.95)
RECOVERIES = ("finetune", "distill", None)
ON_H200 = {"latency_dense_ms": 5.25, "latency_device": "cuda", "latency_kernel": "gathered_sm90", "gpu": "H200"}
OF_DENSE = {"dense": 0.97, "val_dense": 0.966, "dense_continued": 0.972, "val_dense_continued": 0.968}


def mixed_results(count: int, make: Callable[..., Result]) -> list[Result]:
    """Runs of many patterns, sparsities, recoveries and seeds, with plausible numbers; the same at each call."""
    source = random.Random(0)
    units = [(pattern, unit) for pattern, choices in PATTERNS.items() for unit in choices]
    cells = product(range(count), units, SPARSITIES, RECOVERIES, range(2))
    results = []
    for number, (turn, (pattern, unit), sparsity, recovery, seed) in enumerate(islice(cells, count)):
        lost = 0.02 * len(pattern) / 8 * sparsity**4 * (2 if recovery is None else 1) + source.gauss(0, 0.002)
        speedup = (0.6 if unit in (4, None) else 0.9) + sparsity * (1.2 if unit else 0.4) + source.gauss(0, 0.02)
        changes = {
            "run_id": f"run-{number}",
            "pattern": pattern,
            "granularity": unit,
            "recovery": recovery,
            "seed": seed,
        }
        changes |= {"pattern_parameters": {"granularity": unit}, "recovery_parameters": {"lr": 0.001 * (turn + 1)}}
        changes |= {
            "sparsity_target": sparsity,
            "sparsity_achieved": sparsity - 0.002,
            "latency_sparse_ms": 5.25 / speedup,
        }
        changes |= {"sparse": 0.97 - lost, "val_sparse": 0.965 - lost + source.gauss(0, 0.001)}
        changes |= {"speedup": speedup, "speedup_low": speedup - 0.03, "speedup_high": speedup + 0.03}
        commit = ("b" if number % 50 == 7 else "a") * 40
        results.append(make(**changes, **ON_H200, **OF_DENSE, sparse_standard_error=0.004, commit=commit))
    return results


@pytest.fixture
def mixed(make_result) -> Callable[[int], list[Result]]:
    """mixed(count) -> runs as a study of several patterns has them."""
    return lambda count: mixed_results(count, make_result)


@pytest.fixture
def one_seed_ranks(monkeypatch):
    """For tests of what a sentence says of those that are ranked."""
    monkeypatch.setattr("sparsefront.results.statistics.LEAST_SEEDS", 1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with headless_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def shown(browser, tmp_path):
    """shown(results, fragment, given to write_comparison) -> the page; at the end nothing may have gone wrong in it."""

    def show(results, fragment: str = "", **given):
        browser.problems.clear(), browser.requests.clear()
        browser.open(write_comparison(results, tmp_path / "compare.html", title="compared", **given), fragment)
        return browser

    yield show
    assert browser.problems == []
    fetched = [url for url in browser.requests if not url.startswith(("data:", "blob:", "file:", "about:"))]
    assert fetched == [] and sum(url.startswith("file:") for url in browser.requests) <= 1
