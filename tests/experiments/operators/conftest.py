"""Measurements made up for the tests of the operator reports."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from sparsefront_kernels.bench.rows import COLUMNS, Row, write_rows

from experiments.operators.measurements import Measurement, Weight

PLAIN = Measurement(
    weight=Weight("gathered", "vector_wise", 128, "equal"),
    **{"kernel": "gathered_sm90_feature_major", "dtype": "fp16", "m": 4096, "k": 1024, "n": 1024, "sparsity": 0.5},
    **{"layout": "feature_major", "latency_us": 50.0, "dense_us": 100.0},
)
DENSE = Weight("dense", "dense", 0, "")


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """A measurement with some values replaced; `speedup` sets the latency."""

    def make(speedup: float | None = None, **changes: object) -> Measurement:
        one = dataclasses.replace(PLAIN, **changes)
        return one if speedup is None else dataclasses.replace(one, latency_us=one.dense_us / speedup)

    return make


@pytest.fixture
def dense_weight() -> Weight:
    return DENSE


def as_row(one: Measurement, *, correct: bool = True) -> Row:
    copied = ("kernel", "dtype", "m", "k", "n", "sparsity", "layout", "dense_us", "asked_sparsity", "predicted_us")
    made_with = {"gpu": "Some GPU", "torch": "2", "triton": "3", "cuda": "13", "commit": "abc", "date": "2026-01-31"}
    none = {"mask_settings": "", "group_m": 0, "shape": "M0", "baseline": "", "baseline_us": None}
    return Row(
        **dict(zip(("family", "pattern", "granularity", "distribution"), one.weight, strict=True)),
        **{name: getattr(one, name) for name in copied},
        **dict.fromkeys(("latency_us", "p20_us", "p80_us"), one.latency_us if correct else None),
        speedup=one.dense_us / one.latency_us if correct else None,
        roofline_fraction=0.5 if correct else None,
        relative_error=1e-4 if correct else 0.5,
        correct=correct,
        samples=20,
        **none,
        **made_with,
    )


@pytest.fixture
def results_file(tmp_path: Path) -> Callable[..., Path]:
    """Write right and wrong measurements as the benchmark does."""

    def write(right: list[Measurement], wrong: list[Measurement] = ()) -> Path:
        path = tmp_path / "rows.csv"
        write_rows(path, [*map(as_row, right), *(as_row(one, correct=False) for one in wrong)])
        assert path.read_text().startswith(",".join(COLUMNS))
        return path

    return write
