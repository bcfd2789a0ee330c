"""distill and square_head: each step by a plain formula, and which tokens count.

Blocks are found in every model; what they return is kept for one forward.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sparsefront.config.validate import validate
from sparsefront.models.base import block_names
from sparsefront.recovery.distillation import Distillation, SquareHeadDistillation, soft_target_loss, square_head_loss
from sparsefront.tasks.classification import ImageClassification
from sparsefront.tasks.extractive_qa import ExtractiveQA
from sparsefront.training.graphs import HiddenStates


def plain_soft_target_loss(student: list[list[float]], teacher: list[list[float]], temperature: float) -> float:
    """T^2 * sum_i p_i log(p_i / q_i), with p of the teacher and q of the student, mean over the rows."""

    def softened(row):
        powers = [math.exp(logit / temperature) for logit in row]
        return [power / sum(powers) for power in powers]

    rows = [
        sum(p * math.log(p / q) for p, q in zip(softened(wanted), softened(given), strict=True))
        for given, wanted in zip(student, teacher, strict=True)
    ]
    return temperature**2 * sum(rows) / len(rows)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.5])
def test_soft_targets_follow_the_formula(temperature):
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 7) * 3, torch.randn(5, 7) * 3
    loss = soft_target_loss(student, teacher, temperature)
    assert loss.item() == pytest.approx(
        plain_soft_target_loss(student.tolist(), teacher.tolist(), temperature), abs=1e-5
    )
    assert soft_target_loss(teacher, teacher, temperature).item() == pytest.approx(0.0, abs=1e-6)


class Classifier(nn.Module):
    """Two blocks in a list and a head; dropout tells whether it is in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(x))


class Fixed:
    """An optimization whose steps can be told apart from no steps."""

    def build(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.1)


LAYERS = ["blocks.0", "blocks.1"]
BATCH = {"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), "labels": torch.arange(8) % 3}


class WatchLoss(pl.Callback):
    """The loss of each step, and what it should be by `formula` for the weights before that step."""

    def __init__(self, teacher: nn.Module, formula: Callable[..., float]) -> None:
        self.teacher, self.formula = teacher, formula
        self.expected, self.seen = [], []

    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        module.net.eval()  # the formula has no dropout: the student's is switched off for this test
        outputs, states = [], []
        for net in (module.net, self.teacher):
            x = batch["x"]
            states.append([x := block(x) for block in net.blocks])
            outputs.append(net.head(x))
        self.expected.append(float(self.formula(*outputs, list(zip(*states, strict=True)), batch["labels"])))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(outputs["loss"].item())


def assert_minimizes(distillation: pl.Callback, formula: Callable[..., float]) -> None:
    pl.seed_everything(1, verbose=False)
    task, watch = ImageClassification(Classifier(), Fixed(), num_classes=3), WatchLoss(distillation.teacher, formula)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(accelerator="cpu", max_steps=3, callbacks=[distillation, watch], **dict.fromkeys(quiet, False))
    trainer.fit(task, DataLoader([BATCH], batch_size=None))
    assert len(watch.seen) == 3 and watch.seen == pytest.approx(watch.expected, abs=1e-5)
    assert watch.seen[-1] < watch.seen[0]


@pytest.mark.parametrize(("hardness", "hidden"), [(0.25, 0.0), (1.0, 0.0), (0.9, 3.0), (0.0, 1.0)])
def test_distill_minimizes_its_formula(hardness, hidden):
    def formula(student, teacher, states, labels):
        soft = plain_soft_target_loss(student.tolist(), teacher.tolist(), 2.0)
        distance = sum(((a - b) ** 2).mean() for a, b in states) / len(states)
        return (1 - hardness) * F.cross_entropy(student, labels) + hardness * soft + hidden * distance

    settings = {"hidden_states": hidden, "hidden_layers": LAYERS if hidden else []}
    assert_minimizes(Distillation(Classifier(), hardness=hardness, temperature=2.0, **settings), formula)


@pytest.mark.parametrize(("hidden", "soft"), [(1.0, 0.0), (0.5, 2.0)])
def test_square_head_minimizes_its_formula(hidden, soft):
    def formula(student, teacher, states, labels):
        distance = sum(((s - t) ** 2).mean() / (t**2).mean() for s, t in states)
        soft_targets = plain_soft_target_loss(student.tolist(), teacher.tolist(), 2.0)
        return F.cross_entropy(student, labels) + hidden * distance + soft * soft_targets

    settings = {"hidden_states": hidden, "soft_targets": soft, "temperature": 2.0}
    assert_minimizes(SquareHeadDistillation(Classifier(), LAYERS, **settings), formula)


def test_padding_does_not_count():
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    real = torch.tensor([[True, True, False], [True, False, False]])
    expected = (student[real] - teacher[real]).square().sum() / teacher[real].square().sum()
    student[~real], teacher[~real] = 100.0, -100.0
    assert square_head_loss([(student, teacher)], real).item() == pytest.approx(expected.item(), rel=1e-5)
    pooled = (torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    assert square_head_loss([pooled], real).item() == pytest.approx(0.25), "a state without tokens counts as a whole"


def test_zero_state_gives_no_nan():
    assert square_head_loss([(torch.zeros(2, 2), torch.zeros(2, 2))]).item() == 0.0


def test_padded_texts_of_a_batch():
    """What the callback makes of a batch with an attention mask."""
    net = nn.Sequential(nn.Identity())
    task = SimpleNamespace(net=net, label_loss=lambda output, batch: torch.zeros(()))
    student, teacher = torch.ones(1, 2, 3), torch.full((1, 2, 3), 2.0)
    teacher[:, 1] = 1e6
    loss = SquareHeadDistillation(nn.Identity(), ["0"]).loss(
        task, None, None, [(student, teacher)], {"attention_mask": torch.tensor([[1, 0]])}
    )
    assert loss.item() == pytest.approx(0.25)


def test_both_ends_of_answers_are_taught():
    task = ExtractiveQA(nn.Identity())
    task.net_inputs = lambda batch: {}
    given, wanted = (SimpleNamespace(start_logits=torch.randn(2, 5), end_logits=torch.randn(2, 5)) for _ in range(2))
    teacher = nn.Identity()
    teacher.forward = lambda: wanted
    distillation = Distillation(teacher, hardness=1.0, temperature=3.0)
    distillation._taught, distillation._learnt = HiddenStates(teacher, []), HiddenStates(task.net, [])
    batch = {"start_positions": torch.tensor([0, 1]), "end_positions": torch.tensor([2, 3])}
    both = [
        plain_soft_target_loss(getattr(given, end).tolist(), getattr(wanted, end).tolist(), 3.0)
        for end in ("start_logits", "end_logits")
    ]
    assert distillation.objective(task, given, batch).item() == pytest.approx(sum(both) / 2, abs=1e-5)


BLOCKS = {
    "": [f"blocks.{i}" for i in range(4)],
    "model.prune_head=true": [f"blocks.{i}" for i in range(4)],
    "model=resnet50 recipe=default pattern=element_wise": [
        f"layer{stage}.{i}" for stage, count in {1: 3, 2: 4, 3: 6, 4: 3}.items() for i in range(count)
    ],
}


@pytest.mark.parametrize("overrides", BLOCKS)
def test_blocks_of_networks(composed, overrides):
    experiment = validate(composed(*overrides.split()))
    net = experiment.model.skeleton(experiment.dataset.info)
    assert block_names(net, experiment.model.prunable(net)) == BLOCKS[overrides]


class Tupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x), "attention"


def test_states_of_one_forward_are_kept():
    net = nn.ModuleList([Tupled(), nn.Linear(3, 3)])
    states = HiddenStates(net, ["1", "0"])
    inputs = torch.randn(2, 3)
    net[0](inputs)
    states.listen()
    first, second = net[0](inputs)[0], net[1](inputs)
    taken = states.take()
    assert taken[0] is second and taken[1] is first, "in the order of the names, the hidden state of a tuple"
    net[0](inputs)
    assert not states._outputs, "nothing is held between steps"
    states.remove()
    assert not net[0]._forward_hooks
