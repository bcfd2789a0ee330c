"""Precision is measured, not trained: what a row holds, which stages are shared, and what is refused before training."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.tasks.outcomes import load_outcomes

ON_CPU = ("trainer=cpu", "measure.device=cpu", "model.depth=1")
PAIRS = (
    "pattern=n_m",
    "pattern.n=2",
    "pattern.m=4",
    "sparsity=0.5",
    "kernel=reference",
    "kernel.family=semi_structured",
)
BLOCKS = ("pattern=block_wise", "granularity=64")
STORED = ("dense", "prune", "recover", "export")


def folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def stored(kind: str) -> list[str]:
    return sorted(path.name for path in (folder().parents[1] / "cache" / kind).iterdir())


def test_one_network_in_every_precision(run):
    """What runs is evaluated, stages before the swap are those of the first run, and no latency is made up on a CPU."""
    first = run(*ON_CPU, *PAIRS)
    kept = {kind: stored(kind) for kind in STORED}
    assert first.speed.precision == first.speed.dtype == "fp32" and first.quality.dense_low is None
    for precision, of_dense in (("fp8", "fp8"), ("fp8_static", "fp8"), ("int8", "int8")):
        row = run(*ON_CPU, *PAIRS, f"precision={precision}")
        assert {kind: stored(kind) for kind in STORED} == kept
        speed, quality = row.speed, row.quality
        assert (speed.precision, speed.dtype, speed.dense_low_precision) == (precision, "fp32", of_dense)
        assert speed.latency_dense_ms > 0 and speed.latency_kernel == "reference"
        assert speed.latency_sparse_ms is speed.speedup is speed.latency_dense_low_ms is None
        assert None not in (quality.sparse, quality.val_sparse, quality.dense_low, quality.val_dense_low)
        assert (quality.dense, quality.masked) == (first.quality.dense, first.quality.masked)
        assert set(row.kernels.low_precision_layers.values()) > {precision} and row.kernels.quantization_error > 0
        outcomes = load_outcomes(folder() / quality.outcomes_file)
        assert set(outcomes) == {"dense", "dense_low", "masked", "sparse"}
        samples = np.arange(quality.evaluated_samples)
        assert outcomes["dense_low"].metric_over(samples) == pytest.approx(quality.dense_low)
        assert {side.partition(" ")[0] for side in json.loads((folder() / "samples.json").read_text())} <= {
            *("dense", "fused_dense")
        }


REFUSED = {
    "no kernels": (
        ["precision=fp8", "kernel=none"],
        r"^kernel=none: swaps nothing in, and precision=fp8 is .*kernel=auto",
    ),
    "forced to dense": (
        ["precision=int8", "kernel=sparse", "kernel.family=dense"],
        r"^kernel=sparse: swaps nothing in",
    ),
    "no swap": (["precision=fp8", "stages=[dense,prune,recover,export,measure,report]"], r"^stages=without swap: "),
    "its kernel": (
        ["kernel=sparse", "kernel.name=blocked_fp8_reference", *BLOCKS],
        r"^kernel\.name=blocked_fp8_reference: multiplies in fp8: add precision=fp8",
    ),
    "another precision": (
        ["precision=int8", "kernel=reference", "kernel.name=blocked_fp8_reference", *BLOCKS],
        r"^kernel\.name=blocked_fp8_reference: multiplies in fp8",
    ),
    "unknown": (["precision.mode=fp4"], r"^precision\.mode=fp4: must be 'none', 'fp8', 'fp8_static' or 'int8'"),
    "no batches": (["precision=fp8_static", "precision.batches=0"], r"^precision\.batches=0: "),
    "dense low": (["measure.dense_low=[fp8_static]"], r"^measure\.dense_low=.*must be 'fp8', 'int8' or"),
    "dense low twice": (["measure.dense_low=[fp8,fp8]"], r"^measure\.dense_low=\['fp8', 'fp8'\]: names a value twice"),
    "untimed": (["precision=fp8", "measure.latency=false"], r"^measure\.latency=False: kernels are chosen by timing"),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_before_training(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message) as refused:
        validate(composed(*ON_CPU, *overrides))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("capability", "dtype", "overrides", "message"),
    [
        (
            (8, 0),
            "fp16",
            ["precision=fp8"],
            r"^precision=fp8: needs a GPU of compute capability 8\.9 or more, not 8\.0 of Card",
        ),
        ((8, 0), "fp16", ["precision=fp8_static"], r"^precision=fp8_static: needs a GPU of compute capability 8\.9"),
        ((7, 5), "fp16", ["precision=int8"], r"^precision=int8: needs a GPU of compute capability 8\.0"),
        (
            (9, 0),
            "fp32",
            ["precision=int8"],
            r"^precision=int8: runs beside fp16 or bf16 on a GPU, not float32: set measure\.dtype",
        ),
        ((8, 0), "fp16", ["measure.dense_low=[fp8]"], r"^measure\.dense_low=\['fp8'\]: needs a GPU of compute"),
        ((8, 0), "fp16", [], ()),
        ((9, 0), "fp32", [], ()),
        ((9, 0), "fp16", [], ("fp8",)),
        ((9, 0), "bf16", ["precision=int8"], ("fp8", "int8")),
        ((9, 0), "bf16", ["measure.dense_low=[]", "precision=fp8"], ()),
        ((9, 0), "fp16", ["kernel=none", "measure.latency=false"], ()),
        ((9, 0), "fp16", ["pattern=dense", "precision=fp8"], ()),
    ],
)
def test_what_a_gpu_can_run(composed, monkeypatch, capability, dtype, overrides, message):
    """Either it is refused, or dense is measured in these."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Card")
    config = composed("trainer=cpu", "measure.device=cuda", f"measure.dtype={dtype}", *overrides)
    if isinstance(message, str):
        with pytest.raises(InvalidSetting, match=message):
            validate(config)
    else:
        assert validate(config).dense_low == message
