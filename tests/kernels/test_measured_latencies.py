"""Predicted latencies of products: exact where times follow the law that is assumed, and nothing outside what was measured."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels.bench.rows import COLUMNS
from sparsefront_kernels.performance_model import PerformanceModel, PredictedSpeedup, Product
from sparsefront_kernels.performance_model.latency_table import (
    LatencyTable,
    Measured,
    between,
    distilled,
    latency_table,
    user_file,
)
from sparsefront_kernels.registry import names

SHAPES = ((64, 64), (64, 256), (256, 64), (512, 512))
MADE_WITH = {"torch": "2", "triton": "3", "cuda": "13", "commit": "abc", "date": "2026-01-01"}


def law_us(m: int, size: float, sparsity: float, factor: float = 1.0) -> float:
    """Times for which ln(time) is linear in sparsity, ln(K·N) and ln(M)."""
    return factor * 0.01 * m**0.9 * size**0.7 * math.exp(-1.5 * sparsity)


def measured(m: int = 64, k: int = 64, n: int = 64, sparsity: float = 0.5, **changed) -> Measured:
    one = Measured(
        family="gathered",
        granularity=32,
        distribution="equal",
        dtype="fp16",
        m=m,
        k=k,
        n=n,
        sparsity=sparsity,
        kernel="gathered_sm90",
        latency_us=law_us(m, k * n, sparsity),
        dense_us=law_us(m, k * n, 0.0, factor=0.5),
    )
    return one._replace(**changed)


def table(*more: Measured) -> LatencyTable:
    grid = itertools.product((64, 256, 1024), SHAPES, (0.5, 0.75, 0.9))
    return LatencyTable("GPU", MADE_WITH, tuple(measured(m, *shape, sparsity) for m, shape, sparsity in grid) + more)


def ask(asked_table: LatencyTable, family: str = "gathered", **changed) -> PredictedSpeedup | None:
    plain = {"granularity": 32, "dtype": "fp16", "m": 256, "k": 64, "n": 256, "sparsity": 0.75, "layout": "row_major"}
    product = Product(**plain | changed, distribution="equal")
    return PerformanceModel(asked_table.gpu, None, asked_table).speedup(product, family)


def test_between_two_points_and_not_beyond():
    points = {1.0: (10.0, 0.0), 3.0: (20.0, 4.0)}
    assert between(points, 1.5) == (12.5, 1.0)
    assert between(points, 3.0) == (20.0, 4.0)
    assert between(points, 3.01) is None and between(points, 0.99) is None and between({}, 1.0) is None
    assert between(points, 3.01, slack=0.02) == (20.0, 4.0)
    assert between({2.0: (7.0,)}, 2.0) == (7.0,)


@settings(max_examples=60)
@given(m=st.integers(64, 1024), k=st.integers(64, 512), n=st.integers(64, 512), sparsity=st.floats(0.5, 0.9))
def test_exact_for_lawful_times(m, k, n, sparsity):
    found = ask(table(), m=m, k=k, n=n, sparsity=sparsity)
    assert found.latency_us == pytest.approx(law_us(m, k * n, sparsity))
    assert found.dense_us == pytest.approx(law_us(m, k * n, 0.0, factor=0.5))
    assert found.speedup == pytest.approx(found.dense_us / found.latency_us)


OUTSIDE = {
    "small M": {"m": 63},
    "M of nothing": {"m": 0},
    "large M": {"m": 1025},
    "small weight": {"k": 63, "n": 64},
    "large weight": {"k": 512, "n": 513},
    "dense": {"sparsity": 0.4},
    "sparse": {"sparsity": 0.95},
    "dtype": {"dtype": "fp32"},
    "granularity": {"granularity": 64},
    "family": {"family": "csr"},
    "layout": {"layout": "feature_major"},
}


@pytest.mark.parametrize("changed", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_silent_outside_what_was_measured(changed):
    assert ask(table()) is not None
    assert ask(table(), **changed) is None


def row(**changed: object) -> dict[str, str]:
    """A line of a results file."""
    text = dict.fromkeys(COLUMNS, "") | measured()._asdict() | MADE_WITH
    text |= {"pattern": "vector_wise", "layout": "row_major", "correct": True, "gpu": "GPU"} | changed
    return {name: str(value) for name, value in text.items()}


def test_distilled_to_the_fastest_kernel():
    rows = [
        row(kernel="gathered_triton", latency_us=3.0),
        row(kernel="gathered_sm90", latency_us=2.0),
        row(kernel="gathered_sm90_feature_major", layout="feature_major", latency_us=1.0),
        row(kernel="cublas", family="dense", latency_us=1.0),
        row(kernel="gathered_sm90", correct=False, latency_us=""),
        row(kernel="gathered_triton", sparsity=0.75, latency_us=1.5, date="2026-01-02"),
    ]
    made = distilled(rows, names())
    assert [(one.kernel, one.sparsity, one.latency_us) for one in made.measured] == [
        ("gathered_sm90", 0.5, 2.0),
        ("gathered_triton", 0.75, 1.5),
    ]
    assert made.gpu == "GPU" and made.made_with == MADE_WITH | {"date": "2026-01-01, 2026-01-02"}


def test_own_table_replaces_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    assert len(latency_table("NVIDIA H200").measured) > 1
    own = dataclasses.replace(table(), gpu="NVIDIA H200", measured=(measured(),))
    own.save(user_file("NVIDIA H200"))
    assert latency_table("NVIDIA H200") == own
    assert latency_table("a GPU that nobody measured") is None
