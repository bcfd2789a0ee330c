"""A small network that learns in a moment, and its data."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefront import progress


@dataclass
class Problem:
    """Which of the first four inputs is the largest; `dense` is trained, `initial` is as it began."""

    dense: nn.Module
    initial: nn.Module
    x: Tensor
    y: Tensor

    @property
    def loader(self) -> DataLoader:
        return DataLoader(TensorDataset(self.x, self.y), batch_size=32, shuffle=True)

    def net(self) -> nn.Module:
        return copy.deepcopy(self.dense)

    def loss(self, net: nn.Module) -> float:
        with torch.no_grad():
            return F.cross_entropy(net(self.x), self.y).item()

    def distance(self, net: nn.Module) -> float:
        """Between what the network's second layer gives and what the dense one's gives."""
        with torch.no_grad():
            return (net[:3](self.x) - self.dense[:3](self.x)).norm().item()


@pytest.fixture(scope="session")
def trained() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=generator)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    problem = Problem(net, copy.deepcopy(net), x, x[:, :4].argmax(1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(net(problem.x), problem.y).backward()
        optimizer.step()
    return problem


@pytest.fixture(autouse=True)
def no_bars():
    with progress.showing(False):
        yield


class Cnn(nn.Module):
    """Two convolutions, two Linears that are called in another order than they are named, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 16, 3, padding=1)
        self.mlp = nn.Linear(16, 16)
        self.unused = nn.Linear(4, 4)

    def forward(self, images: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.body(self.stem(images).relu()).relu().mean((2, 3))
        x = self.mlp(x).relu()
        return self.head(x if scale is None else x * scale)


@pytest.fixture
def cnn() -> nn.Module:
    return Cnn().eval()
