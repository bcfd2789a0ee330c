"""recipe.epochs=0: a finished checkpoint is the dense network, and nobody takes what it has seen for held out."""

import json

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import open_dict, read_write
from safetensors.torch import load_file, save_file

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64", "model.depth=1", "kernel=none"]
AS_IT_IS = [*ON_CPU, "recipe.epochs=0", "recovery=none"]


@pytest.fixture
def checkpoint(composed, tmp_path) -> str:
    """Weights that another run trained, as a file; that run's own stages are forgotten."""
    run_experiment(composed("debug=tiny", *ON_CPU, "stages=[dense]", f"cache_dir={tmp_path / 'other'}"))
    (weights,) = (tmp_path / "other" / "dense").glob("*/weights.safetensors")
    kept = tmp_path / "finished.safetensors"
    kept.write_bytes(weights.read_bytes())
    return str(kept)


def test_weights_are_the_dense_networks(run, checkpoint, tmp_path):
    row = run(*AS_IT_IS, f"model.path={checkpoint}")
    (folder,) = (file.parent for file in (tmp_path / "cache" / "dense").glob("*/determined_by.json"))
    given, dense = load_file(checkpoint), load_file(folder / "weights.safetensors")
    assert given.keys() == dense.keys() and all(torch.equal(given[name], dense[name]) for name in given)
    assert json.loads((folder / "training.json").read_text())["steps"] == 0
    assert row.cost.dense_steps == row.cost.dense_samples == row.cost.recovery_steps == 0
    assert row.quality.dense is not None and row.quality.masked is not None and row.quality.val_seen is True


def test_dense_training_saw_nothing_held_out(run, checkpoint):
    assert run(*ON_CPU).quality.val_seen is False
    assert run(*ON_CPU, f"model.path={checkpoint}").quality.val_seen is False


CALIBRATED = {
    "taylor": ["importance=taylor"],
    "fisher": ["importance=fisher"],
    "wanda": ["importance=wanda"],
    "obs": ["importance=obs"],
    "latency_search": ["pattern=mixed", "sparsity=0.95", "allocation=latency_search", "allocation.latency_ms=1"],
}


def keys_with_batches_of(composed, batch_size, *overrides):
    from sparsefront.stages.keys import stage_keys

    return stage_keys(validate(composed(*overrides, f"recipe.batch_size={batch_size}")))


@pytest.mark.parametrize("more", CALIBRATED.values(), ids=CALIBRATED)
def test_masks_of_another_batch_size(composed, checkpoint, more):
    overrides = [*AS_IT_IS, f"model.path={checkpoint}", "kernel=auto", *more]
    small, large = (keys_with_batches_of(composed, batch_size, *overrides) for batch_size in (7, 8))
    assert small.dense == large.dense and small.prune != large.prune
    if small.choice_table is not None:
        assert small.choice_table != large.choice_table and small.choice_times == large.choice_times


def test_missing_checkpoint_is_rejected_first(composed, tmp_path):
    with pytest.raises(
        InvalidSetting, match="^recipe.epochs=0: takes a finished checkpoint .* vit_small starts from random"
    ):
        run_experiment(composed(*AS_IT_IS))
    assert not (tmp_path / "cache" / "dense").exists()


NO_BUDGET = {
    "finetune": "^recipe.recovery_epochs=None: must be set with recipe.epochs=0",
    "lr_rewind": "^recipe.epochs=0: trains no dense network, so there are no learning rates to rewind to",
}


@pytest.mark.parametrize(("recovery", "message"), NO_BUDGET.items())
def test_recovery_as_long_as_nothing(composed, checkpoint, recovery, message):
    overrides = [f"model.path={checkpoint}", f"recovery={recovery}", "recipe.recovery_epochs=null"]
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*AS_IT_IS, *overrides))


def test_checkpoint_without_this_tasks_head(composed, checkpoint, monkeypatch):
    other = {name: tensor for name, tensor in load_file(checkpoint).items() if not name.startswith("head.")}
    save_file(other, checkpoint)
    monkeypatch.setattr("sparsefront.stages.dense.open_data", None)
    with pytest.raises(InvalidSetting, match="^recipe.epochs=0: takes the checkpoint as it is, and head is not in it"):
        run_experiment(composed(*AS_IT_IS, f"model.path={checkpoint}"))


def swept(config, sweeper: str):
    hydra = HydraConfig.get()
    with read_write(hydra), open_dict(hydra):
        hydra.mode = RunMode.MULTIRUN
        hydra.sweep.dir = "results/sweep"
        hydra.sweeper._target_ = sweeper
    return config


def test_seen_samples_choose_nothing(composed, checkpoint):
    overrides = [*AS_IT_IS, f"model.path={checkpoint}", "optimize=[val_masked]"]
    optuna = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
    with pytest.raises(
        InvalidSetting, match=r"^optimize=\['val_masked'\]: .*may have been trained on the held-out part of digits"
    ):
        validate(swept(composed(*overrides), optuna))
    validate(swept(composed(*overrides), "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"))
    validate(swept(composed(*ON_CPU, "optimize=[val_masked]"), optuna))
