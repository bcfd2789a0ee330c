"""Rows that nobody edited are verified without a complaint: every pattern, with different recoveries, schedules and data."""

import math

import pytest
import yaml
from tiny_files import write_tiny_imagenet

import sparsefront as sf
from sparsefront.verify.__main__ import main
from sparsefront.verify.compared import Comparison

TINY = ("debug=tiny", "logger=none", "model.dim=64", "recipe.epochs=1")
PLAIN = ("report.html=false", "report.plot=false", "report.mask_pictures=false")
# what is compiled and searched has its own tests
FEW_EXECUTIONS = ("measure.execution_modes=[eager,cuda_graph]", "measure.variants=[]", "measure.autotune_seconds=5")
ROWS = {
    "dense": ("pattern=dense",),
    "element_wise": (
        "pattern=element_wise",
        "sparsity=0.8",
        "schedule=iterative",
        "recovery=lr_rewind",
        "importance=taylor",
    ),
    "vector_wise": (
        "pattern=vector_wise",
        "granularity=8",
        "sparsity=0.5",
        "recovery=weight_rewind",
        "recipe.save_epoch_weights=true",
    ),
    "block_wise": ("pattern=block_wise", "granularity=8", "sparsity=0.5", "recovery=none"),
    "tile_wise": ("pattern=tile_wise", "granularity=16", "sparsity=0.5", "recovery=distill", "control=dense_distilled"),
    "n_m": ("pattern=n_m", "sparsity=0.5", "recovery=sr_ste", "dataset.valid_fraction=0"),
    "uniform": (
        "pattern=uniform",
        "sparsity=0.5",
        "allocation=global_threshold",
        "schedule=gradual",
        "control=dense_continued",
    ),
    "block_2_4": ("pattern=block_2_4", "sparsity=0.75", "seed=3"),
    "tile_2_4": (
        "pattern=tile_2_4",
        "granularity=16",
        "sparsity=0.75",
        "recovery.seed=2",
        "recipe.recovery_steps=3",
        "recipe.recovery_epochs=null",
    ),
    "shuffled_block": ("pattern=shuffled_block", "granularity=8", "sparsity=0.5"),
    "channel": ("pattern=channel", "pattern.axis=width", "sparsity=0.5"),
    "depth": ("pattern=depth", "sparsity=0.5"),
    "mixed": (
        "pattern=mixed",
        "pattern.candidates=[n_m,vector_wise:8]",
        "sparsity=0.75",
        "allocation=latency_search",
        "allocation.latency_ms=100",
        "allocation.generations=3",
    ),
    "obs_update": ("pattern=n_m", "sparsity=0.5", "recovery=obs_update", "importance=obs"),
    "quantized": ("pattern=n_m", "sparsity=0.5", "recovery.quantize=true"),
    "low precision": ("pattern=n_m", "sparsity=0.5", "precision=int8"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("honest")
    return f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("overrides", ROWS.values(), ids=ROWS)
def test_honest_row_is_verified(places, capsys, monkeypatch, overrides, device):
    monkeypatch.setattr(Comparison, "own_noise", math.inf)  # no verdict here hangs on a timer
    on = ("trainer=cpu", "measure.device=cpu") if device == "cpu" else ("trainer=default", *FEW_EXECUTIONS)
    blocks = "model.depth=2" if "pattern=depth" in overrides else "model.depth=1"
    folder = sf.run(*TINY, blocks, *PLAIN, *on, *places, *overrides).folder
    assert main([str(folder), places[0]]) == 0, capsys.readouterr()
    assert capsys.readouterr().out.endswith("\nverified\n")


def test_honest_row_of_default_recipe(places, tmp_path, capsys):
    data = ("dataset=tiny_imagenet", f"dataset.path={write_tiny_imagenet(tmp_path)}", "dataset.complete=false")
    cpu = ("trainer=cpu", "measure.device=cpu", "measure.latency=false", "kernel=none")
    folder = sf.run(*TINY, "model.depth=1", *PLAIN, *cpu, *places, *data, "pattern=n_m", "sparsity=0.5").folder
    choices = {"recipe": "vit_small_tiny_imagenet"}  # as the command line stores it, though there is no such recipe
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": {"choices": choices}}}))
    assert main([str(folder), places[0], data[1]]) == 0, capsys.readouterr()
