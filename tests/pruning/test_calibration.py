"""Scores from training data: the gradients of the loss, one per batch, without a trace on the network."""

import torch
from torch import nn

from sparsefront.importance.magnitude import Magnitude
from sparsefront.importance.taylor import Taylor
from sparsefront.pruning.calibration import score_weights
from sparsefront.tasks.image_classification import ImageClassification


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.dropout(x.flatten(1)))


def setting() -> tuple[ImageClassification, list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    task = ImageClassification(Net(), num_classes=3)
    return task, [{"x": torch.randn(4, 1, 2, 3), "labels": torch.randint(3, (4,))} for _ in range(3)]


def test_taylor_sums_weight_times_gradient_over_batches():
    task, batches = setting()
    scores = score_weights(task, ["layer"], importance=Taylor(batches=2), train_loader=batches)
    weight = task.net.layer.weight
    expected = torch.zeros_like(weight)
    task.net.eval()
    for batch in batches[:2]:
        loss = nn.functional.cross_entropy(task.net(x=batch["x"]), batch["labels"])
        expected += (weight * torch.autograd.grad(loss, weight)[0]).abs().detach()
    ratio = scores["layer"] / expected
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))  # a common factor changes no mask


def test_the_network_is_left_as_it_was():
    task, batches = setting()
    task.net.train()
    before = task.net.layer.weight.clone()
    score_weights(
        task, ["layer"], importance=Taylor(batches=5), train_loader=batches
    )  # more than there are: it goes round
    assert torch.is_grad_enabled()
    assert task.net.training and task.net.layer.weight.grad is None
    assert torch.equal(task.net.layer.weight, before)


def test_magnitude_reads_no_data():
    task, _ = setting()

    class Unreadable:
        def __iter__(self):
            raise AssertionError("magnitude needs no data")

    scores = score_weights(task, ["layer"], importance=Magnitude(), train_loader=Unreadable())
    torch.testing.assert_close(scores["layer"], task.net.layer.weight.detach().abs())
