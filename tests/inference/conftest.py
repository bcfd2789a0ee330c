"""Small pruned networks and their exports."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from sparsefront.export.checkpoint import Export, read_export, write_export
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.patterns.base import Pattern


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.second = nn.Linear(96, 64, bias=False)
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()))


@pytest.fixture
def mlp() -> Callable[[], nn.Module]:
    """mlp() -> a new one with the same weights each time; its prunable layers are first and second."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Mlp().eval()

    return make


@pytest.fixture
def exported(tmp_path) -> Callable[..., Export]:
    """exported(net, pattern, sparsity, layers) -> the export of the net, whose layers are pruned in place."""

    def make(
        net: nn.Module,
        pattern: Pattern,
        sparsity: float,
        layers: Iterable[str],
        dense_reasons: dict[str, str] | None = None,
    ) -> Export:
        masks, permutations = {}, {}
        for name in layers:
            weight = net.get_submodule(name).weight.data
            permutations[name] = pattern.find_permutation(as_matrix(weight).abs(), sparsity)
            masks[name] = pattern.mask(as_matrix(weight).abs(), sparsity)
            weight.mul_(like_weight(masks[name], weight))
        directory = tmp_path / "export"
        directory.mkdir()
        settings = {"pattern": pattern, "sparsity": sparsity, "permutations": permutations}
        write_export(directory, net, masks, **settings, dense_reasons=dense_reasons)
        return read_export(directory)

    return make
