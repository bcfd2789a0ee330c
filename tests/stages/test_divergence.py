"""Whatever trains, and however it diverges: one line, and no stage that a later run takes for finished."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment
from sparsefront.tasks.base import Task
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.lightning_parts import Diverged

SMALL = ["debug=tiny", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1"]
TRAIN = [*SMALL, "stages=[dense,prune,recover]", "trainer.limit_batches=6"]
# way -> the setting that is to be lowered
WAYS = {
    "schedule=iterative schedule.rounds=2 schedule.spacing=linear recipe.recovery_epochs=2 pattern=n_m": "recovery.lr",
    "recovery=finetune schedule=gradual schedule.updates=3 importance=movement pattern=element_wise": "recovery.lr",
    "recovery=lr_rewind pattern=n_m": "recipe.lr",
    "recovery=distill pattern=n_m": "recovery.lr",
    "recovery=sparse_swaps recovery.along=finetune recovery.batches=1 pattern=n_m": "recovery.lr",
    "recovery=sr_ste pattern=n_m": "recovery.lr",
    "recovery=cast pattern=n_m": "recovery.lr",
    "recovery=finetune recipe.ema=0.9 pattern=n_m": "recovery.lr",
}


def stored(cache: Path, stage: str) -> list[Path]:
    return [file.parent for file in cache.glob(f"{stage}/*/determined_by.json") if ".partial" not in str(file)]


@pytest.fixture
def broken(monkeypatch):
    """break_at(step): from now on the loss of that training step, counted from 1, is NaN."""
    calls = []

    def break_at(step: int) -> list[int]:
        whole = Task.training_loss
        calls.clear()

        def loss(self, output, batch):
            calls.append(len(calls) + 1)
            value = whole(self, output, batch)
            return value * float("nan") if len(calls) == step else value

        monkeypatch.setattr(ImageClassification, "training_loss", loss)
        return calls

    return break_at


def test_diverged_dense_training_trains_again(composed, tmp_path):
    settings = [*TRAIN, "recipe.lr=1e3", "recipe.optimizer=sgd", "recipe.warmup=0", "recipe.gradient_clip=null"]
    for _ in range(2):
        line = (
            r"^stage dense diverged: the loss is \w+ \(epoch 1 of 1, step \d, learning rate \S+\); lower recipe\.lr or "
        )
        with pytest.raises(Diverged, match=line):
            run_experiment(composed(*settings))
        assert not stored(tmp_path / "cache", "dense")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_recovering_stops(composed, broken, tmp_path, way):
    run_experiment(composed(*TRAIN, *way.split(), "stages=[dense,prune]"))
    steps = broken(4)
    line = rf"^stage recover(, round 1 of 2)? diverged: the loss is nan \(epoch 1 of 1, step 4, .*; lower {WAYS[way]}\."
    with pytest.raises(Diverged, match=line):
        run_experiment(composed(*TRAIN, *way.split()))
    assert len(steps) <= 6
    assert not stored(tmp_path / "cache", "recover") and stored(tmp_path / "cache", "dense")
    broken(0)
    run_experiment(composed(*TRAIN, *way.split()))
    assert stored(tmp_path / "cache", "recover")


@pytest.mark.parametrize(
    ("hessian", "reason"),
    [
        (lambda inputs: torch.full((inputs.shape[1],) * 2, float("nan")), "its inputs.* are not finite"),
        (lambda inputs: -torch.eye(inputs.shape[1]), "the Hessian of its inputs cannot be inverted"),
    ],
    ids=["not finite", "not positive"],
)
def test_obs_names_the_layer(composed, monkeypatch, hessian, reason):
    from sparsefront.recovery import obs_update

    settings = [*TRAIN, "recovery=obs_update", "recovery.batches=2", "pattern=element_wise"]
    run_experiment(composed(*settings, "stages=[dense,prune]"))
    monkeypatch.setattr(obs_update, "input_hessian", hessian)
    with pytest.raises(InvalidSetting, match=rf"^recovery\.damping=0\.01: blocks\.0\.attn\.q: {reason}"):
        run_experiment(composed(*settings))


def test_broken_weights_are_rejected(composed, tmp_path, monkeypatch):
    from sparsefront.config.validate import validate
    from sparsefront.stages.network import build_net

    weights = dict(build_net(validate(composed(*SMALL))).state_dict())
    weights["blocks.0.mlp.fc1.weight"] = weights["blocks.0.mlp.fc1.weight"].clone()
    weights["blocks.0.mlp.fc1.weight"][3, :2] = float("nan")
    for name, save in (("broken.safetensors", save_file), ("broken.pt", torch.save)):
        save(weights, tmp_path / name)
        line = rf"^model\.path=\S+{name}: {name} cannot be used: blocks\.0\.mlp\.fc1\.weight holds 2 NaN and 0 infinite"
        monkeypatch.setattr("sparsefront.stages.dense.fit", None)
        with pytest.raises(InvalidSetting, match=line):
            run_experiment(composed(*SMALL, f"model.path={tmp_path / name}"))
    with pytest.raises(InvalidSetting, match=r"^recovery\.teacher=\S+broken\.pt: broken\.pt cannot be used: blocks\.0"):
        validate(composed(*SMALL, "recovery=distill", f"recovery.teacher={tmp_path / 'broken.pt'}"))
