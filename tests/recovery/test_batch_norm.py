"""Statistics of batch normalization after pruning without training."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsefront as sf
from sparsefront.recovery.none import NoRecovery
from sparsefront.recovery.obs_update import ObsUpdate


class Wide(nn.Module):
    """A BatchNorm behind one pruned layer, and a dropout that must stay off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.norm, self.last = (
            nn.Linear(8, 16),
            nn.Dropout(0.5),
            nn.BatchNorm1d(16),
            nn.Linear(16, 4),
        )

    def forward(self, x):
        return self.last(self.norm(self.drop(self.first(x))))


@pytest.mark.parametrize("recovery", [NoRecovery(batch_norm_batches=3), ObsUpdate(batches=2, batch_norm_batches=3)])
def test_statistics_are_plain_averages(recovery):
    dense, x = Wide(), torch.randn(80, 8)
    net, read = copy.deepcopy(dense), loader_of(x)
    masks = sf.prune(net, "element_wise", 0.5, layers=["first"], tell=lambda text: None)
    sf.recover(net, masks, read, nn.functional.cross_entropy, recovery=recovery, dense_net=dense)
    with torch.no_grad():
        given = [net.first(batch) for batch in x.split(16)[:3]]
    assert torch.allclose(net.norm.running_mean, torch.stack([batch.mean(0) for batch in given]).mean(0), atol=1e-6)
    assert torch.allclose(net.norm.running_var, torch.stack([batch.var(0) for batch in given]).mean(0), atol=1e-6)
    assert net.norm.momentum == 0.1 and net.training


def loader_of(x: torch.Tensor, batch_size: int = 16) -> DataLoader:
    return DataLoader(TensorDataset(x, torch.zeros(len(x), dtype=torch.long)), batch_size=batch_size)


@pytest.mark.parametrize(("batches", "batch_size"), [(None, 16), (3, 1)], ids=["switched off", "batches of one row"])
def test_statistics_stay_without_batches(batches, batch_size):
    net = Wide()
    net.norm.running_mean.fill_(3.0)
    masks = sf.prune(net, "element_wise", 0.5, layers=["first"], tell=lambda text: None)
    read = loader_of(torch.randn(8, 8), batch_size)
    sf.recover(net, masks, read, recovery=NoRecovery(batch_norm_batches=batches))
    assert (net.norm.running_mean == 3.0).all() and (net.norm.running_var == 1.0).all()
