"""Rows without a label: the teacher's loss takes all rows, everything else those with a label."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny_files import write_imdb
from torch import nn

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
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
