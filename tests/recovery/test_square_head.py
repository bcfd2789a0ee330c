"""SquareHead: the loss by hand, every step by the plain formula, and which tokens count."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.recovery.distillation import SquareHeadDistillation, square_head_loss
from sparsefront.tasks.classification import ImageClassification


def test_padding_does_not_count():
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    real = torch.tensor([[True, True, False], [True, False, False]])
    expected = (student[real] - teacher[real]).square().sum() / teacher[real].square().sum()
    student[~real], teacher[~real] = 100.0, -100.0
    assert square_head_loss([(student, teacher)], real).item() == pytest.approx(expected.item(), rel=1e-5)
    pooled = (torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    assert square_head_loss([pooled], real).item() == pytest.approx(0.25), "a state without tokens counts as a whole"


def test_a_state_of_zeros_gives_no_nan():
    assert square_head_loss([(torch.zeros(2, 2), torch.zeros(2, 2))]).item() == 0.0


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Fixed:
    def build(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.1)


class WatchLoss(pl.Callback):
    """The loss of each step, and what it should be for the weights before that step."""

    def __init__(self, teacher: Classifier, hidden: float, soft: float) -> None:
        self.teacher, self.hidden, self.soft = teacher, hidden, soft
        self.expected: list[float] = []
        self.found: list[float] = []

    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        states, logits = [], []
        for net in (module.net, self.teacher):
            x = batch["x"]
            states.append([x := block(x) for block in net.blocks])
            logits.append(net.head(x) / 2)
        expected = F.cross_entropy(2 * logits[0], batch["labels"])
        expected += self.hidden * sum(((s - t) ** 2).mean() / (t**2).mean() for s, t in zip(*states, strict=True))
        p, q = logits[1].softmax(-1), logits[0].softmax(-1)
        expected += self.soft * 4 * (p * (p / q).log()).sum(-1).mean()
        self.expected.append(expected.item())

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.found.append(outputs["loss"].item())


@pytest.mark.parametrize(("hidden", "soft"), [(1.0, 0.0), (0.5, 2.0)])
def test_each_step_minimizes_the_formula(hidden, soft):
    torch.manual_seed(0)
    teacher = Classifier()
    distillation = SquareHeadDistillation(
        teacher, ["blocks.0", "blocks.1"], hidden_states=hidden, soft_targets=soft, temperature=2.0
    )
    watch = WatchLoss(teacher, hidden, soft)
    task = ImageClassification(Classifier(), Fixed(), num_classes=3)
    batch = {"x": torch.randn(8, 4), "labels": torch.arange(8) % 3}
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(accelerator="cpu", max_steps=3, callbacks=[distillation, watch], **dict.fromkeys(quiet, False))
    trainer.fit(task, DataLoader([batch], batch_size=None))
    assert len(watch.found) == 3 and watch.found == pytest.approx(watch.expected, rel=1e-5)
    assert watch.found[-1] < watch.found[0]


def test_texts_are_compared_where_they_are_no_padding():
    """What the callback makes of a batch with an attention mask."""
    net = nn.Sequential(nn.Identity())
    task = SimpleNamespace(net=net, label_loss=lambda output, batch: torch.zeros(()))
    student, teacher = torch.ones(1, 2, 3), torch.full((1, 2, 3), 2.0)
    teacher[:, 1] = 1e6
    loss = SquareHeadDistillation(nn.Identity(), ["0"]).loss(
        task, None, None, [(student, teacher)], {"attention_mask": torch.tensor([[1, 0]])}
    )
    assert loss.item() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recovery.hidden_layers=[blocks.9]"], r"recovery\.hidden_layers=\[\'blocks\.9\'\]: not in the network"),
        (["recovery.hidden_states=0"], r"recovery\.hidden_states=0: must be"),
        (["recovery.along=lr_rewind", "schedule=gradual"], "recovery.along=lr_rewind: goes with schedule"),
        (["recovery.along=lr_rewind", "recovery.lr=0.1"], r"recovery\.lr=0\.1: must be null"),
        (["recovery.teacher=/nowhere"], r"recovery\.teacher=/nowhere"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_work_is_rejected(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("recovery=square_head", *overrides))
