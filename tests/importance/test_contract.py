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


@pytest.fixture(params=NAMES)
def scored(request, composed):
    """Scores twice over, and what was scored."""
    importance = build_settings("importance", composed(f"importance={request.param}").importance)
    torch.manual_seed(0)
    task = ImageClassification(Net(), num_classes=3)
    batches = [{"x": torch.randn(4, 2, 8, 8), "labels": torch.randint(3, (4,))} for _ in range(3)]

    def score() -> dict[str, torch.Tensor]:
        return score_weights(
            task,
            list(LAYERS),
            importance=importance,
            open_loader=lambda: iter(batches),
        )

    before = {name: tensor.clone() for name, tensor in task.net.state_dict().items()}
    return importance, score(), score(), task, before


def test_scores_are_finite_matrices_in_fp32(scored):
    _, scores, _, _, _ = scored
    assert {name: tuple(values.shape) for name, values in scores.items()} == LAYERS
    for values in scores.values():
        assert values.dtype == torch.float32 and values.isfinite().all() and not values.requires_grad


def test_scores_follow_from_the_weights_alone(scored):
    _, first, second, _, _ = scored
    assert all(torch.equal(first[name], second[name]) for name in LAYERS)


def test_scores_tell_weights_apart(scored):
    importance, scores, _, _, _ = scored
    if importance.source == "training":
        pytest.skip("nothing has been trained: all scores are zero")
    assert all(values.unique().numel() > values.numel() // 2 for values in scores.values())


def test_network_is_unchanged(scored):
    _, _, _, task, before = scored
    assert task.net.training and torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in task.net.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in task.net.modules())


def test_name_of_the_file(scored, request):
    assert scored[0].name == request.node.callspec.params["scored"]
