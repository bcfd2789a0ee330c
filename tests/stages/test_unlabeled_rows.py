"""Rows without a label: the teacher's loss takes all rows, everything else those with a label."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny_files import write_imdb
from torch import nn

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.recovery.distillation import Distillation, soft_target_loss
from sparsefront.tasks.classification import SequenceClassification

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "kernel=none", "model=bert", "model.size=tiny"]


@pytest.fixture
def settings(tmp_path) -> list[str]:
    data = [f"dataset.path={write_imdb(tmp_path / 'imdb')}", "dataset.complete=false", "dataset.unlabeled=true"]
    return [*ON_CPU, "dataset=imdb", *data, "recovery=distill"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("labels", [[1, -100, 0, -100], [-100, -100], [1, 0]])
def test_label_loss_is_the_labeled_mean(labels, smoothing):
    torch.manual_seed(0)
    task = SequenceClassification(nn.Identity(), num_classes=2)
    task.label_smoothing = smoothing
    targets = torch.tensor(labels)
    labeled = targets != -100
    logits = torch.randn(len(labels), 2, requires_grad=True)
    loss = task.label_loss(SimpleNamespace(logits=logits), {"labels": targets, "labeled": labeled})
    loss.backward()
    assert bool(logits.grad.isfinite().all()) and not logits.grad[~labeled].any()
    if labeled.any():
        plain = F.cross_entropy(logits[labeled], targets[labeled], label_smoothing=smoothing)
        assert loss.item() == pytest.approx(plain.item(), abs=1e-6)
    else:
        assert loss.item() == 0.0 and not logits.grad.any()


def test_teacher_loss_takes_all_rows():
    torch.manual_seed(0)
    task, teacher = SequenceClassification(nn.Identity(), num_classes=2), nn.Identity()
    student, target = (SimpleNamespace(logits=torch.randn(3, 2)) for _ in range(2))
    batch = {"labels": torch.full((3,), -100), "labeled": torch.zeros(3, dtype=torch.bool)}
    soft = soft_target_loss(student.logits, target.logits, 2.0)
    distilled = Distillation(teacher, hardness=0.5, temperature=2.0).loss(task, student, target, [], batch)
    assert distilled.item() == pytest.approx(0.5 * soft.item(), abs=1e-6)


def test_scores_read_labeled_rows_alone(run, settings, monkeypatch):
    columns, on_device = [], NetworkCalibration._on_device
    monkeypatch.setattr(
        NetworkCalibration, "_on_device", lambda self, batch: columns.append({*batch}) or on_device(self, batch)
    )
    run(*settings, "schedule=gradual", "schedule.updates=2", "importance=taylor", "importance.batches=2")
    assert len(columns) >= 4 and not any("labeled" in names for names in columns)


def test_recovery_and_its_control_take_them(run, settings):
    epochs = ["recipe.epochs=2", "recipe.recovery_epochs=3", "recipe.batch_size=8", "trainer.limit_batches=null"]
    row = run(*settings, *epochs, "control=dense_distilled", "schedule=gradual", "importance=taylor")
    labeled, unlabeled = 31, 38  # of 40 rows each: 1 in test, 8 held out; 1 in test, 1 in train
    assert row.cost.dense_samples == 2 * labeled
    assert row.cost.recovery_samples == 3 * (labeled + unlabeled)
    assert row.quality.dense_distilled is not None and row.choice.dataset_parameters["unlabeled"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "recovery=finetune",
            "^dataset.unlabeled=True: .* recovery=finetune has no teacher: distill, square_head or cast",
        ),
        ("recovery=none", "^dataset.unlabeled=True: .* recovery=none has no teacher"),
        ("control=dense_continued", "^control=dense_continued: learns from labels, .*: dense_distilled"),
    ],
)
def test_they_need_a_teacher(composed, settings, override, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*settings, override))
