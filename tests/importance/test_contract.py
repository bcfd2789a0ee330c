"""What holds for every importance, found by its YAML: on a network with linear and convolution layers, from real batches."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sparsefront.config.settings import build_settings
from sparsefront.pruning.calibration import score_weights
from sparsefront.tasks.classification import ImageClassification

CONF = Path(__file__).resolve().parents[2] / "conf" / "importance"
NAMES = sorted(file.stem for file in CONF.glob("*.yaml"))
LAYERS = {"conv": (4, 18), "linear": (3, 64)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(64, 3)

    def forward(self, x):
        return self.linear(self.dropout(self.conv(x).relu().flatten(1)))


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_every_importance(composed, name):
    importance = build_settings("importance", composed(f"importance={name}").importance)
    assert importance.name == name
    torch.manual_seed(0)
    task = ImageClassification(Net(), num_classes=3)
    batches = [{"x": torch.randn(4, 2, 8, 8), "labels": torch.randint(3, (4,))} for _ in range(3)]
    before = {name: tensor.clone() for name, tensor in task.net.state_dict().items()}
    scores, again = (
        score_weights(task, list(LAYERS), importance=importance, open_loader=lambda: iter(batches)) for _ in range(2)
    )
    assert {layer: tuple(values.shape) for layer, values in scores.items()} == LAYERS
    for layer, values in scores.items():
        assert values.dtype == torch.float32 and values.isfinite().all() and not values.requires_grad
        assert torch.equal(values, again[layer]), "scores follow from the weights and batches alone"
        told_apart = values.unique().numel() > values.numel() // 2
        assert told_apart or importance.source == "training", "where nothing has been trained all scores are zero"
    assert task.net.training and torch.is_grad_enabled(), "the network is left as it was"
    assert all(parameter.grad is None for parameter in task.net.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in task.net.modules())
