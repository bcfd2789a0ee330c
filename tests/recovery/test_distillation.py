"""What a student is trained for, against numbers worked out by hand and a plain formula.

Blocks are found in every model; what they return is kept for one forward.
"""

import math
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sparsefront.config.validate import validate
from sparsefront.models.base import block_names
from sparsefront.recovery.distillation import Distillation, soft_target_loss
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


def test_a_score_has_no_distribution():
    assert soft_target_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]), 2.0).item() == 2.5


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


def fit(distillation: Distillation, *callbacks: pl.Callback, precision: str = "32-true") -> ImageClassification:
    pl.seed_everything(1, verbose=False)
    task = ImageClassification(Classifier(), Fixed(), num_classes=3)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=3,
        precision=precision,
        callbacks=[distillation, *callbacks],
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(task, DataLoader([BATCH], batch_size=None))
    return task


class WatchLoss(pl.Callback):
    """The loss of each step, and what it should be by the plain formula for the weights before that step."""

    def __init__(self, distillation: Distillation, hardness: float, hidden: float) -> None:
        self.of, self.hardness, self.hidden = distillation, hardness, hidden
        self.expected, self.found = [], []

    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        module.net.eval()  # the formula has no dropout: the student's is switched off for this test
        outputs, states = [], []
        for net in (module.net, self.of.teacher):
            x = batch["x"]
            states.append([x := block(x) for block in net.blocks])
            outputs.append(net.head(x))
        hard = F.cross_entropy(outputs[0], batch["labels"]).item()
        soft = plain_soft_target_loss(outputs[0].tolist(), outputs[1].tolist(), 2.0)
        distance = [((a - b) ** 2).mean().item() for a, b in zip(*states, strict=True)]
        self.expected.append(
            (1 - self.hardness) * hard + self.hardness * soft + self.hidden * sum(distance) / len(distance)
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.found.append(outputs["loss"].item())


@pytest.mark.parametrize(("hardness", "hidden"), [(0.25, 0.0), (1.0, 0.0), (0.9, 3.0), (0.0, 1.0)])
def test_each_step_minimizes_the_formula(hardness, hidden):
    torch.manual_seed(5)
    layers = LAYERS if hidden else []
    distillation = Distillation(
        Classifier(), hardness=hardness, temperature=2.0, hidden_states=hidden, hidden_layers=layers
    )
    watch = WatchLoss(distillation, hardness, hidden)
    fit(distillation, watch)
    assert len(watch.found) == 3 and watch.found == pytest.approx(watch.expected, abs=1e-5)
    assert watch.found[-1] < watch.found[0]


def test_answers_are_taught_by_both_their_ends():
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


def skeleton(composed, *overrides):
    experiment = validate(composed(*overrides))
    net = experiment.model.skeleton(experiment.dataset.info)
    return net, experiment.model.prunable(net)


def test_blocks_of_the_small_vit(composed):
    assert block_names(*skeleton(composed)) == [f"blocks.{i}" for i in range(4)]
    assert block_names(*skeleton(composed, "model.prune_head=true")) == [f"blocks.{i}" for i in range(4)]


def test_blocks_of_a_resnet_are_its_bottlenecks(composed):
    found = block_names(*skeleton(composed, "model=resnet50", "recipe=default", "pattern=element_wise"))
    counts = {1: 3, 2: 4, 3: 6, 4: 3}
    assert found == [f"layer{stage}.{i}" for stage, count in counts.items() for i in range(count)]


def test_blocks_of_bert():
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        net = BertModel(BertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32))
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    assert block_names(net, layers) == [f"encoder.layer.{i}" for i in range(3)]


class Tupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x), "attention"


def test_only_the_forward_that_is_listened_to_is_kept():
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
