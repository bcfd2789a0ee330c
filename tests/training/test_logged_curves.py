"""What the trainings of one run log: each phase on axes of its own, with its learning rate."""

import csv

import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import sparsefront as sf
from sparsefront.data.digits import Digits
from sparsefront.recovery.rounds import RunContext
from sparsefront.results.loggers import LoggedRun, TensorBoardLogging
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.fit import fit
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

STEPS = 20


class Run:
    """As W&B's: what it was given, and which metric is drawn over which."""

    def __init__(self) -> None:
        self.logged, self.axes = [], {}

    def log(self, values: dict) -> None:
        self.logged.append(values)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric


class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x)


def train(folder, phase: str, loggers: list, lr: float, steps: int = STEPS) -> None:
    recipe = Recipe(epochs=1, decay="constant", warmup=0.0)
    fit(
        ImageClassification(
            Net(nn.Flatten(), nn.Linear(64, 10)),
            num_classes=10,
            optimization=Optimization(recipe, lr=lr, total_steps=steps),
        ),
        Digits(shift=0).data_module(batch_size=32, seed=0, cache_dir=folder),
        epochs=1,
        recipe=recipe,
        trainer=TrainerSettings(accelerator="cpu", progress_bar=False, limit_batches=steps),
        loggers=loggers,
        directory=folder,
        phase=phase,
    )


def test_phases_are_drawn_over_their_own_steps(tmp_path):
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


def test_a_training_of_few_steps_has_its_rate(tmp_path):
    train(tmp_path, "recover", [CSVLogger(tmp_path, name="", version="csv")], 0.25, steps=3)
    with (tmp_path / "csv" / "metrics.csv").open(encoding="utf-8") as file:
        rates = [(line["step"], line["recover/lr"]) for line in csv.DictReader(file) if line["recover/lr"]]
    assert rates == [("0", "0.25")]


def tensorboard_curves(folder) -> dict[str, list[tuple[int, float]]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_the_curve_of_a_recovery_goes_on_over_its_rounds(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    schedule = sf.schedule.Iterative(levels=[0.3, 0.6])
    masks = sf.prune(net, "element_wise", 0.6, layers="0", schedule=schedule, tell=len)
    data = DataLoader(TensorDataset(torch.randn(80, 8), torch.randint(0, 4, (80,))), batch_size=4)
    context = RunContext(tmp_path, loggers=[CSVLogger(tmp_path, name="", version="csv")])
    trainer = TrainerSettings(accelerator="cpu", progress_bar=False)
    sf.recover(net, masks, data, F.cross_entropy, epochs=2, lr=1e-2, trainer=trainer, context=context)
    with (tmp_path / "csv" / "metrics.csv").open(encoding="utf-8") as file:
        steps = [int(line["step"]) for line in csv.DictReader(file) if line["recover/train/loss"]]
    assert steps == [9, 19, 29, 39]
