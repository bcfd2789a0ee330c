"""What a user's network predicts, as rows of logits: the loss of a teacher and smoothed labels are means over them."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.distillation import prediction_loss
from sparsefront.tasks.plain_task import TARGET, PlainTask

B, PLACES, CLASSES = 3, 4, 5


class Named(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


SHAPES = {
    "tokens": lambda rows: rows.unflatten(0, (B, PLACES)),
    "pixels": lambda rows: rows.unflatten(0, (B, 2, 2)).movedim(-1, 1),
    "voxels": lambda rows: rows.unflatten(0, (B, 2, 2, 1)).movedim(-1, 1),
    "a tuple of one": lambda rows: (rows,),
    "a list of one": lambda rows: [rows],
    "a named tuple": lambda rows: Named(rows.unflatten(0, (B, PLACES)), rows),
    "a named output": lambda rows: {"logits": rows.unflatten(0, (B, PLACES)), "hidden": rows},
}


def rows(seed: int) -> torch.Tensor:
    return torch.randn(B * PLACES, CLASSES, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def task() -> PlainTask:
    return PlainTask(nn.Linear(1, 1), lambda output, target: F.cross_entropy(output, target))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_teachers_loss_of_all_predictions(task, shape):
    student, teacher = rows(0), rows(1)
    expected = prediction_loss(task, student, teacher, {}, 2.0)
    torch.testing.assert_close(prediction_loss(task, shape(student), shape(teacher), {}, 2.0), expected)


def test_labels_of_pixels_are_smoothed(task):
    task.label_smoothing = 0.2
    output, labels = SHAPES["pixels"](rows(0)), torch.arange(B * PLACES).view(B, 2, 2) % CLASSES
    expected = F.cross_entropy(output, labels, label_smoothing=0.2)
    torch.testing.assert_close(task.label_loss(output, {TARGET: labels}), expected)


@pytest.mark.parametrize("output", [(rows(0), rows(1)), [rows(0), rows(1)], {"out": rows(0)}, None], ids=type)
def test_output_without_logits(task, output):
    with pytest.raises(InvalidSetting, match="net=Linear: returned .*, which does not say what its logits are"):
        task.logits(output)


def flat_loss(output, target):
    """As users write it: over tokens, with padding."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def margin(output, target):
    return F.multi_margin_loss(output, target)


def named_loss(output, target):
    return F.cross_entropy(output["logits"], target) + output["hidden"].square().mean()


LABELS, PLACED = torch.tensor([0, 4, 2]), torch.tensor([[0, 1, 2, 3], [4, 0, -100, -100], [1, -100, -100, -100]])
WHOLE = torch.randn(B, CLASSES, generator=torch.Generator().manual_seed(3))
TOKENS = torch.randn(B, PLACES, CLASSES, generator=torch.Generator().manual_seed(3))
# loss, output, target -> the dim of the classes
FORMS = {
    "classes": (F.cross_entropy, WHOLE, LABELS, -1),
    "a module": (nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.rand(CLASSES)), WHOLE, LABELS, -1),
    "half": (F.cross_entropy, WHOLE.bfloat16(), LABELS, -1),
    "log-probabilities": (F.nll_loss, WHOLE.log_softmax(-1), LABELS, -1),
    "margins": (margin, WHOLE, LABELS, -1),
    "tokens": (flat_loss, TOKENS, PLACED, -1),
    "places": (F.cross_entropy, TOKENS.movedim(-1, 1), PLACED, 1),
    "pixels": (F.cross_entropy, TOKENS.movedim(-1, 1).unflatten(2, (2, 2)), PLACED.view(B, 2, 2), 1),
    "pixels last": (
        lambda y, t: F.cross_entropy(y.movedim(-1, 1), t),
        TOKENS.unflatten(1, (2, 2)),
        PLACED.view(B, 2, 2),
        -1,
    ),
    "several labels": (F.binary_cross_entropy_with_logits, WHOLE, torch.ones(B, CLASSES).tril(), None),
    "scores": (F.mse_loss, WHOLE, WHOLE.flip(0), None),
    "one score": (F.l1_loss, WHOLE[:, :1], WHOLE[:, 1:2], None),
    "two directions": (
        lambda y, t: F.cross_entropy(y, t) + F.cross_entropy(y.T, t),
        WHOLE[:, :B],
        torch.arange(B),
        None,
    ),
    "by name": (named_loss, {"logits": WHOLE, "hidden": WHOLE}, LABELS, -1),
    "a tuple of one": (lambda y, t: F.cross_entropy(y[0], t), (WHOLE,), LABELS, -1),
    "a named tuple": (lambda y, t: F.cross_entropy(y.logits, t), Named(WHOLE, WHOLE), LABELS, -1),
}


@pytest.mark.parametrize(("loss", "output", "target", "dim"), FORMS.values(), ids=FORMS)
def test_class_dims_follow_the_loss(loss, output, target, dim):
    task = PlainTask(nn.Linear(1, 1), loss)
    dims = task.class_dims(output, {TARGET: target})
    assert list(dims.values()) == [dim]
    logits = next(iter(task.name_logits(output).values()))
    columns = 1 if dim is None else logits.shape[dim]
    assert PlainTask(task.net, loss, class_dims=dims).logits(output)[0].shape == (logits.numel() // columns, columns)
