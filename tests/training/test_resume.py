"""A killed training goes on to the same bits, from a sound checkpoint alone; a signal ends one, and a full disk begins none."""

import os
import random
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from digit_training import Net, train_digits
from program_server import Program, ProgramServer
from torch import nn

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.data.digits import Digits
from sparsefront.errors import InvalidSetting, Terminated
from sparsefront.importance.movement import Movement
from sparsefront.networks import BUFFER
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import AccumulateScores, ApplyMasks
from sparsefront.recovery.base import RoundRecord
from sparsefront.recovery.rounds import FinishedRounds
from sparsefront.schedule.gradual import Gradual
from sparsefront.training import resume
from sparsefront.training.recipe import Recipe
from sparsefront.training.resume import CHECKPOINT, KeepEpochs, checkpoint_of, random_state, seal, set_random_state

LAYERS = ["1", "4"]
EPOCHS, KILLED_AT = 4, (2, 3)  # epoch and batch, from 0
TESTS = Path(__file__).resolve().parent.parent


def net() -> Net:
    return Net(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 32), nn.Linear(32, 10)
    )


class Killed(Exception):
    pass


class Kill(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if (trainer.current_epoch, batch_index) == KILLED_AT:
            raise Killed


class Watch(pl.Callback):
    """Whatever a step depends on, at its start."""

    def __init__(self) -> None:
        self.steps = []

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        (optimizer,) = trainer.optimizers
        masks = {name: getattr(module.net.get_submodule(name), BUFFER) for name in LAYERS}
        self.steps.append(
            {
                "epoch": trainer.current_epoch,
                "step": trainer.global_step,
                "rate": optimizer.param_groups[0]["lr"],
                "pixels": batch["x"].sum().item(),
                "kept": {name: int(mask.sum()) for name, mask in masks.items()},
            }
        )


class Training:
    """One training of the digits under masks that tighten; `end` is everything that it leaves."""

    def __init__(
        self, folder: Path, *, kill: bool = False, checkpoint_seconds: float = 0, workers: int = 0, **recipe
    ) -> None:
        pl.seed_everything(0, verbose=False)
        trained = net()
        masked, movement = MaskedWeights(trained, LAYERS), AccumulateScores(trained, LAYERS, Movement())

        def masks_at(sparsity, previous):
            scores = {name: trained.get_submodule(name).weight.detach().abs() for name in LAYERS}
            pattern = TileWise(granularity=8)
            return make_masks(scores, pattern, PerLayer(), sparsity, final_sparsity=0.75, previous=previous)

        masked.set(masks_at(0.0, None))
        gradual = {"schedule": Gradual(updates=6), "sparsity": 0.75, "total_steps": EPOCHS * 5}
        apply_masks, watch = ApplyMasks(masked, make_masks=masks_at, **gradual), Watch()
        trainer = {"accumulate_grad_batches": 2, "limit_batches": 10, "checkpoint_seconds": checkpoint_seconds}
        self.time = train_digits(
            trained,
            folder,
            Recipe(epochs=EPOCHS, **recipe),
            digits=Digits(shift=1, num_workers=workers),
            trainer=trainer,
            callbacks=(apply_masks, movement, watch, *([Kill()] if kill else [])),
            resume_dir=folder,
        )
        self.steps, self.reached = watch.steps, apply_masks.reached
        self.masks, self.weights, self.sums = masked.masks(), trained.state_dict(), movement.sums()


def assert_equal_bits(first: dict, second: dict) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd"}, {"ema": 0.8}, {"workers": 1}],
    ids=["adamw", "momentum", "ema", "loader processes"],
)
def test_killed_training_ends_with_equal_bits(tmp_path, settings):
    whole = Training(tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        Training(tmp_path / "killed", kill=True, **settings)
    resumed = Training(tmp_path / "killed", **settings)
    assert resumed.steps == whole.steps[2 * 10 :], "epochs 2 and 3, each with its ten batches"
    assert_equal_bits(resumed.weights, whole.weights)
    assert_equal_bits(resumed.masks, whole.masks)
    assert_equal_bits(resumed.sums, whole.sums)
    assert resumed.reached == whole.reached
    assert (resumed.time.steps, resumed.time.samples) == (whole.time.steps, whole.time.samples), "of both processes"


KILLED_AT_CHECKPOINT = """
import os
from sparsefront.training import resume
rename = resume.rename_synced
resume.rename_synced = lambda new, old: (rename(new, old), os.kill(os.getpid(), 9))
"""


def training_process(folder: Path, programs: ProgramServer, before: str = "") -> Program:
    """A process that trains in `folder` and leaves its end there: other tests have no say in its threads or its memory."""
    script = (
        f"{before}import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import torch; from pathlib import Path; from process_bodies import TrainerSettings, train_gradually\n"
        f"folder, settings = Path({str(folder)!r}), dict(progress_bar=False, limit_batches=6, checkpoint_seconds=0)\n"
        "trainer = TrainerSettings(accelerator='cpu', **settings)\n"
        "torch.save(train_gradually(trainer, 15, folder, [])['ends'], folder / 'ends.pt')"
    )
    return programs.start(["-c", script])


def test_killed_process_resumes(tmp_path, programs):
    """SIGKILL leaves nothing but what lies on the disk."""
    process = training_process(tmp_path / "killed", programs, KILLED_AT_CHECKPOINT)
    assert process.wait() == -signal.SIGKILL and (tmp_path / "killed" / "unfinished" / CHECKPOINT).exists()
    ends = {}
    for name in ("whole", "killed"):
        assert training_process(tmp_path / name, programs).wait(600) == 0
        (ends[name],) = torch.load(tmp_path / name / "ends.pt")
    whole, resumed = ends["whole"], ends["killed"]
    assert len(resumed["metrics"]) < len(whole["metrics"]), "it did not begin again"
    assert_equal_bits(resumed["weights"], whole["weights"])
    assert_equal_bits(resumed["masks"], whole["masks"])


@pytest.mark.parametrize(("seconds", "saved"), [(0, [1, 2, 3]), (100, [1, 2, 3]), (150, [2]), (300, [3]), (400, [])])
def test_checkpoints_keep_their_distance(tmp_path, monkeypatch, seconds, saved):
    """Of four epochs that take 100 seconds each."""
    epochs, rename, end_epoch = [], resume.rename_synced, KeepEpochs.on_train_epoch_end

    def end_later(self, trainer, module):
        monkeypatch.setattr(resume, "working_time", lambda: 100.0 * (trainer.current_epoch + 1))
        end_epoch(self, trainer, module)

    def record(new, old):
        rename(new, old)
        epochs.append(torch.load(old, weights_only=True)["epoch"] + 1)

    monkeypatch.setattr(resume, "working_time", lambda: 0.0)
    monkeypatch.setattr(resume, "rename_synced", record)
    monkeypatch.setattr(KeepEpochs, "on_train_epoch_end", end_later)
    Training(tmp_path, checkpoint_seconds=seconds)
    assert epochs == saved


def test_random_states_are_restored():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    random.gauss(0, 1), np.random.randn()  # leave half of a pair behind
    state = random_state()
    drawn = [draw() for _ in range(3)]
    set_random_state(state)
    assert [draw() for _ in range(3)] == drawn


# What a killed training left is not gone on from where it is damaged.


def damage(file, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        # inside the tensor: torch.load itself would take it
        content[content.find(torch.full((64,), 1.5).numpy().tobytes()) + 16] ^= 1
    file.write_bytes(content)


def saved(content: object, file: Path) -> None:
    torch.save(content, file)
    seal(file)


def in_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def halve(file: Path) -> None:
    torch.save({"state_dict": {"weight": torch.full((64,), 0.75)}}, file)


def upgrade(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"of another torch"


CHANGES = {
    "truncated": lambda file: damage(file, "truncated"),
    "changed": lambda file: damage(file, "changed"),
    "folder": in_a_folder,
    "halved": halve,
    "upgrade": upgrade,
    "list": lambda file: saved([1, 2], file),
    "other network": lambda file: saved({"state_dict": {"weight": torch.ones(3)}}, file),
    "other names": lambda file: saved({"state_dict": {"other": torch.ones(64)}}, file),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_unfit_checkpoint_is_named_and_unused(tmp_path, caplog, change):
    task = torch.nn.Module()
    task.weight = torch.nn.Parameter(torch.zeros(64))
    file = tmp_path / CHECKPOINT
    saved({"state_dict": {"weight": torch.full((64,), 1.5)}}, file)
    assert checkpoint_of(tmp_path, task) == file
    change(file)
    assert checkpoint_of(tmp_path, task) is None and not file.is_dir()
    (record,) = caplog.records
    assert str(file) in record.getMessage() and "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("file", "how"),
    [("weights.safetensors", "truncated"), ("weights.safetensors", "changed"), ("rounds.json", "truncated")],
)
def test_damaged_rounds_start_again(tmp_path, caplog, file, how):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    torch.nn.init.constant_(net[0].weight, 1.5)
    masked = MaskedWeights(net, ["0"])
    masked.set({"0": torch.ones(8, 8, dtype=torch.bool)})
    rounds = FinishedRounds(tmp_path, net=net, masked=masked, accumulator=None, least_seconds=0)
    rounds.keep([RoundRecord(seconds=1.0)])
    assert rounds.restore() == [RoundRecord(seconds=1.0, earlier_seconds=1.0)]
    damage(tmp_path / "after_001_rounds" / file, how)
    assert rounds.restore() == []
    assert str(tmp_path / "after_001_rounds") in caplog.text
    other = torch.nn.Sequential(torch.nn.Linear(4, 8))
    rounds.keep([RoundRecord(seconds=2.0)])
    assert FinishedRounds(tmp_path, net=other, masked=masked, accumulator=None, least_seconds=0).restore() == []
    assert rounds.restore() == [RoundRecord(seconds=2.0, earlier_seconds=2.0)]


# A training that its disk cannot hold is rejected before its first step.


def test_full_disk_precedes_the_first_step(run, monkeypatch):
    from sparsefront.artifacts import durable

    monkeypatch.setattr(durable, "free_bytes", lambda folder: 1000)
    monkeypatch.setattr("pytorch_lightning.Trainer.fit", lambda *_, **__: pytest.fail("it trains"))
    small = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "recipe.epochs=2"]
    with pytest.raises(InvalidSetting, match=r"^cache_dir=.*dense: 1 kB free .*set trainer.checkpoint=false"):
        run(*small)


# Ctrl-C and SIGTERM end a training as they end any other work, and what trained goes on after its last epoch.

FEW_EPOCHS = 2


class Signal(pl.Callback):
    """Sends this process a signal in the last epoch, and counts the epochs that begin."""

    def __init__(self, number: signal.Signals | None = None) -> None:
        self.number, self.epochs = number, 0

    def on_train_epoch_start(self, trainer, module):
        self.epochs += 1
        if self.number is not None and trainer.current_epoch == FEW_EPOCHS - 1:
            os.kill(os.getpid(), self.number)


def train_until(net: nn.Module, folder: Path, watch: Signal) -> None:
    trainer = {"limit_batches": 2, "checkpoint_seconds": 0}
    options = {"callbacks": (watch,), "resume_dir": folder}
    train_digits(net, folder, Recipe(epochs=FEW_EPOCHS), batch_size=200, trainer=trainer, **options)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_signal_ends_a_training(tmp_path, bodies, number, end):
    before = signal.getsignal(number)
    with pytest.raises(end):
        train_until(bodies.digits_net(), tmp_path, Signal(number))
    assert signal.getsignal(number) is before
    train_until(bodies.digits_net(), tmp_path, again := Signal())
    assert again.epochs == 1, "it goes on after its last finished epoch"
