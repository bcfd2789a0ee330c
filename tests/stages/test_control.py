"""control=dense_continued: the dense network trained on for exactly the recovery's budget, once for a whole sweep."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment
from sparsefront.recovery.distillation import TeacherCallback
from sparsefront.results.candidates import points_lost
from sparsefront.stages import control
from sparsefront.training.recipe import AdamS

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64", "model.depth=1", "kernel=none"]
CONTROL = [*ON_CPU, "control=dense_continued", "recipe.epochs=2", "recipe.recovery_epochs=3", "recipe.batch_size=50"]


def stored(tmp_path: Path, stage: str = "dense_continued") -> list[Path]:
    return [file.parent for file in (tmp_path / "cache" / stage).glob("*/determined_by.json")]


@pytest.fixture
def fits(monkeypatch) -> Iterable[list[float]]:
    """The learning rates of every step of every optimizer: dense, then control, then recovery."""
    seen: dict[int, list[float]] = {}
    keep = []
    for optimizer in (torch.optim.AdamW, AdamS):

        def watched(self, *arguments, step=optimizer.step, **named):
            keep.append(self)  # so that no id comes twice
            seen.setdefault(id(self), []).append(self.param_groups[0]["lr"])
            return step(self, *arguments, **named)

        monkeypatch.setattr(optimizer, "step", watched)
    return seen.values()


EPOCH = 2  # optimizer steps, by debug=tiny
ROUNDS = ["schedule=iterative", "schedule.rounds=2"]
# overrides -> optimizer steps of the recovery
WAYS = {
    "one shot": ([], 6),
    "gradual": (["schedule=gradual"], 6),
    "rounds share it unevenly": (["schedule=iterative", "schedule.rounds=4"], 6),
    "distill": (["recovery=distill", *ROUNDS], 6),
    "sparse_swaps": (["recovery=sparse_swaps", "recovery.along=finetune", "recovery.batches=2"], 6),
    "sr_ste": (["recovery=sr_ste", "pattern=n_m"], 6),
    "rewinding repeats": (["recovery=lr_rewind", "recipe.epochs=3", *ROUNDS], 12),
    "steps": (["recipe.recovery_epochs=null", "recipe.recovery_steps=3"], 3),
    "steps of a schedule": (["recipe.recovery_epochs=null", "recipe.recovery_steps=5", "schedule=gradual"], 5),
}


@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS)
def test_control_takes_the_recoverys_steps(run, fits, tmp_path, way, expected):
    """And the row says how many steps the optimizers took."""
    row = run(*CONTROL, *way)
    dense, continued, *rounds = fits
    cost = row.cost
    assert len(dense) == cost.dense_steps == EPOCH * row.choice.recipe_parameters["epochs"]
    assert len(continued) == sum(map(len, rounds)) == cost.recovery_steps == expected
    assert len(rounds) > 1 or rounds == [continued]
    (folder,) = stored(tmp_path)
    trained = json.loads((folder / "training.json").read_text())
    budget = (cost.recovery_steps, cost.recovery_epochs, cost.recovery_samples)
    assert budget == (expected, expected / EPOCH, 50 * expected)
    assert (trained["steps"], trained["epochs"], trained["samples"]) == budget
    assert row.choice.control == "dense_continued" and cost.dense_continued_seconds > 0
    assert row.quality.dense_continued is not None and row.quality.val_dense_continued is not None
    assert row.quality.dense_continued_standard_error is not None
    reached = 100 * (row.quality.dense_continued - row.quality.masked)
    assert points_lost(row) == pytest.approx(reached)


def test_control_of_other_steps(run):
    """Of data that are a single batch, as no key can tell."""
    short = [*CONTROL, "recipe.recovery_epochs=1", "trainer.limit_batches=null", "recipe.batch_size=2000"]
    assert run(*short).cost.recovery_steps == 1
    with pytest.raises(
        InvalidSetting, match="control=dense_continued: took 1 step and the recovery 2, one for each round"
    ):
        run(*short, "schedule=iterative", "schedule.rounds=2")


def test_start_is_dense_and_end_plain(composed, tmp_path, monkeypatch):
    """The loop below is all that it may do: the recipe's optimizer on the whole network."""
    started, fit = [], control.fit

    def spied(task, *arguments, **named):
        started.append({name: tensor.clone() for name, tensor in task.net.state_dict().items()})
        return fit(task, *arguments, **named)

    monkeypatch.setattr(control, "fit", spied)
    run_experiment(composed("debug=tiny", *CONTROL))
    (dense,), (folder,) = stored(tmp_path, "dense"), stored(tmp_path)
    before, after = load_file(dense / "weights.safetensors"), load_file(folder / "weights.safetensors")
    assert all(torch.equal(started[0][name], before[name]) for name in before)
    assert all((after[name] != 0).any() and not torch.equal(after[name], before[name]) for name in before)


def test_a_sweep_trains_it_once(run, tmp_path):
    rows = [
        run(*CONTROL, *point)
        for point in (
            [],
            ["pattern=n_m", "sparsity=0.5"],
            ["schedule=gradual"],
            ["schedule=iterative", "schedule.rounds=3"],
            ["recovery=distill", "importance=taylor"],
        )
    ]
    assert len(stored(tmp_path)) == 1 and len(stored(tmp_path, "recover")) == 5
    assert len({row.quality.dense_continued for row in rows}) == 1
    assert len({row.identity.dense_continued_weights_sha256 for row in rows}) == 1


SKIPPED = {
    "recovery=none": ["recovery=none"],
    "recovery=least_squares": ["recovery=least_squares"],
    "recovery=obs_update": ["recovery=obs_update"],
    "recovery=sparse_swaps": ["recovery=sparse_swaps", "recovery.batches=1"],
    "pattern=dense": ["pattern=dense"],
}


@pytest.mark.parametrize(("why", "way"), SKIPPED.items(), ids=SKIPPED)
def test_untrained_run_skips_it(run, tmp_path, caplog, why, way):
    with caplog.at_level(logging.INFO):
        row = run(*CONTROL, *way)
    assert f"control=dense_continued: skipped, {why} trains nothing" in caplog.text
    assert row.choice.control is None and row.quality.dense_continued is None and not stored(tmp_path)
    cost, nothing = row.cost, None if why == "pattern=dense" else 0
    assert [cost.recovery_steps, cost.recovery_epochs, cost.recovery_samples] == [nothing] * 3


def test_teacher_gives_the_recoverys_loss(run, fits, tmp_path, monkeypatch):
    losses, seen = [], TeacherCallback.objective

    def objective(self, task, output, batch):
        losses.append((type(self), any((weight == 0).float().mean() > 0.1 for weight in task.net.parameters())))
        return seen(self, task, output, batch)

    monkeypatch.setattr(TeacherCallback, "objective", objective)
    row = run(*CONTROL, "control=dense_distilled", "recovery=distill")
    _, distilled, recovery = fits
    assert distilled == recovery and len(distilled) == row.cost.recovery_steps == len(losses) / 2
    assert len({kind for kind, _ in losses}) == 1, "control and recovery have one kind of teacher"
    assert len(stored(tmp_path, "dense_distilled")) == 1 and not stored(tmp_path)
    assert row.choice.control == "dense_distilled" and row.cost.dense_distilled_seconds > 0
    assert row.quality.dense_continued is None and row.identity.dense_distilled_weights_sha256 is not None
    assert None not in (row.quality.dense_distilled, row.quality.val_dense_distilled)
    assert points_lost(row) == pytest.approx(100 * (row.quality.dense_distilled - row.quality.masked))
