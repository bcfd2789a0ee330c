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
def test_a_teacher_s_loss_is_the_mean_over_all_predictions(task, shape):
    student, teacher = rows(0), rows(1)
    expected = prediction_loss(task, student, teacher, 2.0)
    torch.testing.assert_close(prediction_loss(task, shape(student), shape(teacher), 2.0), expected)


def test_scores_without_a_column_are_no_distribution(task):
    student, teacher = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])
    assert prediction_loss(task, student, teacher, 2.0).item() == 2.5


def test_labels_of_pixels_are_smoothed_as_by_pytorch(task):
    task.label_smoothing = 0.2
    output, labels = SHAPES["pixels"](rows(0)), torch.arange(B * PLACES).view(B, 2, 2) % CLASSES
    expected = F.cross_entropy(output, labels, label_smoothing=0.2)
    torch.testing.assert_close(task.label_loss(output, {TARGET: labels}), expected)


@pytest.mark.parametrize("output", [(rows(0), rows(1)), [rows(0), rows(1)], {"out": rows(0)}, None], ids=type)
def test_an_output_that_does_not_say_what_its_logits_are_is_named(task, output):
    with pytest.raises(InvalidSetting, match="net=Linear: returned .*, which does not say what its logits are"):
        task.logits(output)
