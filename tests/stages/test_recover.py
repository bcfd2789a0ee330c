"""Rounds of pruning and recovery as the stages run them: rates, weights and masks of every fit, and what is recorded."""

import json
import math
import shutil
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from safetensors.torch import load_file

from sparsefront.artifacts.content_digest import checksums
from sparsefront.networks import BUFFER
from sparsefront.pipeline import run_experiment
from sparsefront.pruning.mask_spec import load_masks
from sparsefront.training.resume import epoch_weights_file, save_weights
from sparsefront.training.trainer import TrainerSettings

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64", "model.depth=1"]
TRAIN = ["debug=tiny", "stages=[dense,prune,recover]", "trainer.checkpoint_seconds=0", *ON_CPU]


class Watch(pl.Callback):
    """What one fit really did: the optimizer's rate at each step, masks and weights at the start of each epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.masks: dict[str, torch.Tensor] = {}

    def on_train_epoch_start(self, trainer, module):
        self.weights.append({name: tensor.clone() for name, tensor in module.net.state_dict().items()})
        self.masks = {
            name.removesuffix(BUFFER) + "weight": mask.clone()
            for name, mask in module.net.named_buffers()
            if name.endswith(f".{BUFFER}")
        }

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        (rate,) = {group["lr"] for group in trainer.optimizers[0].param_groups}
        self.rates.append(rate)


@pytest.fixture
def fits(monkeypatch) -> list[Watch]:
    """One entry per fit, the dense run's first."""
    seen: list[Watch] = []
    build = TrainerSettings.build

    def watched(self, *, callbacks: list, **options):
        seen.append(Watch())
        return build(self, callbacks=[*callbacks, seen[-1]], **options)

    monkeypatch.setattr(TrainerSettings, "build", watched)
    return seen


def finished(cache: Path, stage: str) -> Path:
    (folder,) = (folder for folder in (cache / stage).iterdir() if (folder / "determined_by.json").exists())
    return folder


def cosine_with_warmup(step: int, *, peak: float, total: int, warmup: int) -> float:
    """The recipe's curve, written out."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@pytest.mark.parametrize("recovery", ["recovery=lr_rewind", "recovery=distill recovery.along=lr_rewind"])
def test_every_round_repeats_the_rates(composed, fits, recovery):
    """T = 4 epochs of 3 steps, K = 2: each round takes the rates of steps 6 to 11, read from the optimizers themselves."""
    length = ["recipe.epochs=4", "recipe.warmup=0.25", "recipe.lr=1e-3", "trainer.limit_batches=3"]
    rounds = ["schedule=iterative", "schedule.rounds=2", *recovery.split(), "recovery.epochs=2"]
    run_experiment(composed(*TRAIN, *length, *rounds))
    dense, *recovered = (watch.rates for watch in fits)
    expected = [cosine_with_warmup(step, peak=1e-3, total=12, warmup=3) for step in range(12)]
    assert dense == pytest.approx(expected, rel=1e-9)
    assert len(recovered) == 2 and all(rates == dense[6:] for rates in recovered)


def test_rounds_nest_and_are_recorded(composed, fits, tmp_path):
    run_experiment(
        composed(*TRAIN, "schedule=iterative", "schedule.levels=[0,0.3,0.5,0.75]", "recipe.recovery_epochs=4")
    )
    masks = [watch.masks for watch in fits[1:]]
    assert all(mask.all() for mask in masks[0].values()), "the first level leaves the network dense"
    for earlier, later in zip(masks, masks[1:], strict=False):
        assert all(not (later[name] & ~earlier[name]).any() for name in earlier)
    folder = finished(tmp_path / "cache", "recover")
    training = json.loads((folder / "training.json").read_text())
    assert [record["sparsity"] for record in training["rounds"]] == [0, 0.3, 0.5, 0.75]
    sizes = sum(mask.numel() for mask in masks[0].values())
    for record, held in zip(training["rounds"], masks, strict=True):
        zeros = sum(int((~mask).sum()) for mask in held.values())
        assert record["sparsity_achieved"] == pytest.approx(zeros / sizes, abs=1e-9)
        assert record["sparsity_achieved"] == pytest.approx(record["sparsity"], abs=1e-3)
        assert record["steps"] == 2 and record["epochs"] == 1 and record["seconds"] > 0 and record["updates"] == []
    assert training["seconds"] == pytest.approx(sum(record["seconds"] for record in training["rounds"]))
    weights = load_file(folder / "weights.safetensors")
    for name, mask in load_masks(folder / "masks.safetensors").items():
        assert torch.equal(mask, masks[-1][f"{name}.weight"])
        assert not weights[f"{name}.weight"][~mask].any() and weights[f"{name}.weight"][mask].any()


def test_weights_rewind_in_every_round(composed, fits, tmp_path):
    """T = 3, K = 2: at the start of each round every survivor is to the bit what it was when epoch 1 of dense began."""
    rounds = ["schedule=iterative", "schedule.rounds=2", "recovery=weight_rewind", "recovery.epochs=2"]
    run_experiment(
        composed(*TRAIN, "recipe.epochs=3", "recipe.save_epoch_weights=true", *rounds, "allocation=global_threshold")
    )
    dense, *recovered = fits
    epoch_weights = finished(tmp_path / "cache", "dense") / "epoch_weights"
    assert len(list(epoch_weights.iterdir())) == 3
    for epoch, seen in enumerate(dense.weights):
        kept = load_file(epoch_weights_file(epoch_weights.parent, epoch))
        assert kept.keys() == seen.keys() and all(torch.equal(kept[name], seen[name]) for name in seen)
    assert len(recovered) == 2 and [len(watch.weights) for watch in recovered] == [2, 2]
    for watch in recovered:
        assert watch.rates == dense.rates[2:]
        for name, weight in watch.weights[0].items():
            rewound = dense.weights[1][name]
            assert torch.equal(weight, rewound * watch.masks[name] if name in watch.masks else rewound)
    names = list(recovered[0].masks)
    assert all(not (recovered[1].masks[name] & ~recovered[0].masks[name]).any() for name in names)
    final = load_file(finished(tmp_path / "cache", "dense") / "weights.safetensors")
    scores = torch.cat([final[name].abs().flatten() for name in names])
    kept = torch.cat([recovered[0].masks[name].flatten() for name in names])
    assert scores[kept].min() >= scores[~kept].max(), "the first masks come from the trained weights"


def test_killed_run_continues_after_its_round(composed, fits, tmp_path, monkeypatch):
    rounds = ["schedule=iterative", "importance=movement", "schedule.levels=[0,0.5,0.75]"]
    run_experiment(composed(*TRAIN, *rounds, f"cache_dir={tmp_path / 'whole'}"))
    whole = len(fits)
    begin = Watch.on_train_epoch_start

    def die_in_the_last_round(self, trainer, module):
        if len(fits) == 2 * whole:
            raise KeyboardInterrupt
        begin(self, trainer, module)

    monkeypatch.setattr(Watch, "on_train_epoch_start", die_in_the_last_round)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run_experiment(composed(*TRAIN, *rounds))
    monkeypatch.setattr(Watch, "on_train_epoch_start", begin)
    (records,) = (tmp_path / "cache" / "recover").glob("*.unfinished/*/after_002_rounds/rounds.json")
    lasted = [{**record, "seconds": 500.0} for record in json.loads(records.read_text())]
    records.write_text(json.dumps(lasted))
    (records.parent / "checksums.json").unlink()
    (records.parent / "checksums.json").write_text(json.dumps(checksums(records.parent)))
    run_experiment(composed(*TRAIN, *rounds))
    assert len(fits) == 2 * whole + 1, "the dense run and the finished rounds are not repeated"
    folders = [finished(tmp_path / cache, "recover") for cache in ("whole", "cache")]
    for file in ("weights.safetensors", "masks.safetensors"):
        first, second = (load_file(folder / file) for folder in folders)
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list((tmp_path / "cache" / "recover").glob("*.unfinished"))
    cost = json.loads((folders[1] / "determined_by.json").read_text())["seconds"]
    assert 1000 < cost < 2000, "what the first two rounds took before the kill is part of the cost"


KILLED = {
    "cast": ["recovery=cast", "pattern=n_m", "recovery.mask_every=4", "recovery.decay=1e-2"],
    "sparse_swaps": ["recovery=sparse_swaps", "recovery.along=finetune", "pattern=n_m", "recovery.batches=2"],
    "square_head": ["recovery=square_head"],
}


@pytest.mark.parametrize("way", KILLED.values(), ids=KILLED.keys())
def test_killed_recovery_ends_the_same(composed, fits, tmp_path, monkeypatch, way):
    length = ["recipe.recovery_epochs=3", "trainer.limit_batches=6"]
    run_experiment(composed(*TRAIN, *length, *way, f"cache_dir={tmp_path / 'whole'}"))
    begin = Watch.on_train_epoch_start

    def die_in_the_last_epoch(self, trainer, module):
        if len(fits) == 4 and trainer.current_epoch == 2:
            raise KeyboardInterrupt
        begin(self, trainer, module)

    monkeypatch.setattr(Watch, "on_train_epoch_start", die_in_the_last_epoch)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run_experiment(composed(*TRAIN, *length, *way))
    monkeypatch.setattr(Watch, "on_train_epoch_start", begin)
    run_experiment(composed(*TRAIN, *length, *way))
    assert len(fits) == 5 and len(fits[-1].weights) == 1, "only the last epoch is trained again"
    folders = [finished(tmp_path / cache, "recover") for cache in ("whole", "cache")]
    for file in ("weights.safetensors", "masks.safetensors"):
        first, second = (load_file(folder / file) for folder in folders)
        assert list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
    costs = [json.loads((folder / "training.json").read_text())["rounds"][0] for folder in folders]
    assert [cost["steps"] for cost in costs] == [18, 18] and costs[0]["samples"] == costs[1]["samples"]


@pytest.mark.parametrize("control", ["null", "dense_continued"])
def test_killed_training_of_another_dense_network(composed, fits, tmp_path, monkeypatch, control):
    """Of the same key, but of other bits: it was removed and made again, as by another processor."""
    run = [*TRAIN, "recipe.recovery_epochs=3", f"control={control}"]
    begin = Watch.on_train_epoch_start

    def die_in_the_last_epoch(self, trainer, module):
        if len(fits) == 2 and trainer.current_epoch == 2:
            raise KeyboardInterrupt
        begin(self, trainer, module)

    def save_other_bits(net, file):
        with torch.no_grad():
            next(net.parameters()).mul_(1.001)
        save_weights(net, file)

    with monkeypatch.context() as context, pytest.raises((KeyboardInterrupt, SystemExit)):
        context.setattr(Watch, "on_train_epoch_start", die_in_the_last_epoch)
        run_experiment(composed(*run))
    shutil.rmtree(finished(tmp_path / "cache", "dense"))
    monkeypatch.setattr("sparsefront.stages.dense.save_weights", save_other_bits)
    run_experiment(composed(*run))
    killed, again = fits[1], fits[3]
    assert len(killed.weights) == 2 and len(again.weights) == 3, "all epochs are trained"
