"""What the trainings of one run log: each phase on axes of its own, with its learning rate."""

import csv

import pytest
from digit_training import Net, train_digits
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from torch import nn

from sparsefront.data.digits import Digits
from sparsefront.results.loggers import LoggedRun, TensorBoardLogging
from sparsefront.training.recipe import Recipe

STEPS = 20


class Run:
    """As W&B's: what it was given, and which metric is drawn over which."""

    def __init__(self) -> None:
        self.logged, self.axes = [], {}

    def log(self, values: dict) -> None:
        self.logged.append(values)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric


def train(folder, phase: str, loggers: list, lr: float) -> None:
    recipe, net = Recipe(epochs=1, decay="constant", warmup=0.0), Net(nn.Flatten(), nn.Linear(64, 10))
    options = {"trainer": {"limit_batches": STEPS}, "loggers": loggers, "phase": phase}
    train_digits(net, folder, recipe, lr=lr, digits=Digits(shift=0), **options)


def test_phases_have_their_own_steps(tmp_path):
    run = Run()
    rates = {"dense": 0.25, "continued": 0.5}
    loggers = [
        WandbLogger(experiment=run, save_dir=tmp_path),
        CSVLogger(tmp_path, name="", version="csv"),
        *TensorBoardLogging().build(LoggedRun(run_name="a", output_dir=tmp_path, group=None, config={})),
    ]
    for phase, rate in rates.items():
        train(tmp_path, phase, loggers, rate)
    with (tmp_path / "csv" / "metrics.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    curves = tensorboard_curves(tmp_path / "tensorboard")
    for phase, rate in rates.items():
        assert run.axes[f"{phase}/*"] == f"{phase}/step" and run.axes[f"{phase}/step"] is None
        for name in ("train/loss", "lr", "val/accuracy"):
            points = [values for values in run.logged if f"{phase}/{name}" in values]
            steps = {"train/loss": [9, 19], "lr": [0, 9, 19], "val/accuracy": [19]}[name]
            assert [values[f"{phase}/step"] for values in points] == steps
            assert [int(line["step"]) for line in lines if line[f"{phase}/{name}"]] == steps
            assert [step for step, _ in curves[f"{phase}/{name}"]] == steps
        assert [values[f"{phase}/lr"] for values in run.logged if f"{phase}/lr" in values] == [rate] * 3
        assert [value for _, value in curves[f"{phase}/lr"]] == [rate] * 3
    assert not any("trainer/global_step" in values for values in run.logged)
    assert {name.partition("/")[0] for values in run.logged for name in values} == rates.keys()


def tensorboard_curves(folder) -> dict[str, list[tuple[int, float]]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
