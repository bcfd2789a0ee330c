"""Every task trains and is evaluated in a Trainer, and asks the net by the right names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from sparsefront.data.base import DataInfo
from sparsefront.data.digits import Digits
from sparsefront.data.split_data import SplitData
from sparsefront.data.text import EncodedText, TextPart
from sparsefront.measure.accuracy import evaluate
from sparsefront.stages.network import TASKS, build_task
from sparsefront.tasks.base import Task

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::pytorch_lightning.utilities.warnings.PossibleUserWarning"
)


def sentences(labels: torch.Tensor) -> SplitData:
    """One sentence of 3 to 6 tokens per label."""
    lengths = torch.arange(len(labels)) % 4 + 3
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(5, 200, (int(starts[-1]),), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    text = EncodedText({"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}, starts, {"labels": labels})
    return SplitData(lambda split: TextPart(text, pad_token_id=0, width=None, max_length=64), batch_size=4, seed=0)


def dataset(kind: str, num_classes: int = 2, metrics: tuple[str, ...] = ("accuracy", "f1")) -> SimpleNamespace:
    """What a task asks a data set's settings for."""
    return SimpleNamespace(info=DataInfo(kind, num_classes), metrics=metrics)


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tiny_bert: Any, tiny_image_net: Any, optimization: Any, tmp_path: Path
) -> tuple[Task, Any]:
    """A task around a tiny net, and data for it."""
    if request.param == "image_classification":
        settings = Digits()
        return build_task(request.param, tiny_image_net, settings, optimization), settings.data_module(
            batch_size=16, seed=0, cache_dir=tmp_path
        )
    if request.param == "extractive_qa":
        net = tiny_bert("BertForQuestionAnswering")
        return build_task(request.param, net, dataset(request.param), optimization), request.getfixturevalue("squad")
    classes = 1 if request.param == "score" else 2
    metrics = ("pearson", "spearman") if request.param == "score" else ("accuracy", "f1")
    labels = torch.linspace(0, 5, 12) if classes == 1 else torch.arange(12) % 2
    net = tiny_bert("BertForSequenceClassification", num_labels=classes)
    kind = "sequence_classification"
    return build_task(kind, net, dataset(kind, classes, metrics), optimization), sentences(labels)


every_task = pytest.mark.parametrize("case", [*TASKS, "score"], indirect=True)
METRICS = {
    "ImageClassification": {"accuracy"},
    "SequenceClassification": {"accuracy", "f1"},
    "ExtractiveQA": {"f1", "exact_match"},
}


def quiet_trainer(folder: Path, **limits: int) -> pl.Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder, **dict.fromkeys(quiet, False), **limits)


@every_task
def test_fit_and_evaluate(case: tuple[Task, Any], tmp_path: Path) -> None:
    task, data = case
    before = {name: parameter.clone() for name, parameter in task.net.named_parameters()}
    trainer = quiet_trainer(tmp_path, limit_train_batches=3, limit_val_batches=2)
    trainer.fit(task, datamodule=data)
    metrics = {"pearson", "spearman"} if task.metric_name == "pearson" else METRICS[type(task).__name__]
    assert trainer.callback_metrics.keys() == {"train/loss", *(f"val/{name}" for name in metrics)}
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    assert any(not torch.equal(before[name], parameter) for name, parameter in task.net.named_parameters())
    tested = evaluate(task, task.net, data, "test", device=torch.device("cpu"), dtype=torch.float32, limit=2).metrics
    assert tested.keys() == metrics and all(-1 <= value <= 1 for value in tested.values())


def test_unknown_kinds_are_rejected(tiny_image_net: Any) -> None:
    with pytest.raises(
        ValueError, match="task segmentation: there are image_classification, sequence_classification, extractive_qa"
    ):
        build_task("segmentation", tiny_image_net, dataset("segmentation"))
