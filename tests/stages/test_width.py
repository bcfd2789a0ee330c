"""Runs of pattern=channel pattern.axis=width: a narrower dense network is measured, and counts as dense."""

import pytest
from tiny_files import write_glue

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment

WIDTH = [
    "trainer=cpu",
    "measure.device=cpu",
    "pattern=channel",
    "pattern.axis=width",
    "sparsity=0.5",
    "recipe.recovery_epochs=1",
]


@pytest.mark.parametrize(
    "more, message",
    [
        ("allocation=erk", "allocation=erk: pattern channel can meet"),
        ("kernel.family=csr", "kernel.family=csr: would run nowhere: pattern channel"),
        ("recovery=sr_ste", "recovery=sr_ste: needs n of every m kept"),
        ("sparsity=1e-5", "sparsity=1e-05: rounds to no change"),
    ],
)
def test_excluded_options_end_before_training(composed, more, message):
    extra = ["kernel=sparse"] if more.startswith("kernel") else []
    with pytest.raises(InvalidSetting, match=message):
        run_experiment(composed("debug=tiny", *WIDTH, *extra, more))


def test_narrower_export_starts_the_next_run(tmp_path):
    data = write_glue(tmp_path / "data", "sst2")
    common = [f"dataset.path={data}", "dataset=glue", "dataset.task=sst2", "model=bert", "debug=tiny", "logger=none"]
    common += [
        *WIDTH[:2],
        f"cache_dir={tmp_path / 'cache'}",
        f"results_dir={tmp_path / 'results'}",
        "measure.latency=false",
    ]
    common += ["report.html=false", "report.plot=false", "kernel=none"]
    first = sf.run(*common, "model.size=tiny", *WIDTH[2:], "recipe.ignore=[attention]")
    narrower = first.folder / "checkpoint" / "narrower"
    second = sf.run(*common, f"model.path={narrower}", "pattern=n_m", "sparsity=0.5")
    layer = "bert.encoder.layer.0.intermediate.dense"
    assert second.masks[layer].shape[0] < first.masks[layer].shape[0] or first.masks[layer].all()
    assert second.network.config.intermediate_size == first.network.config.intermediate_size
