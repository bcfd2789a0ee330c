"""A user's DataLoader as it is trained on: with its workers, and with random numbers that follow its seed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sparsefront.tasks.lightning_modules import LightningBatches
from sparsefront.training.resume import TrainingData

SETTINGS = {
    "num_workers": 1,
    "prefetch_factor": 5,
    "timeout": 30.0,
    "multiprocessing_context": "fork",
    "persistent_workers": True,
    "in_order": False,
    "pin_memory": True,
}


NET = nn.Linear(3, 1)


class Drawn(Dataset):
    """Every sample is drawn from torch's generator when it is read."""

    scale = 0.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3) * self.scale + 1, index


def scale_by_two(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.scale = 2.0


def trained_on(**settings) -> TrainingData:
    loader = DataLoader(Drawn(), batch_size=2, worker_init_fn=scale_by_two, **settings)
    return TrainingData(LightningBatches(loader, NET, argument="data"))


def epoch(loader: DataLoader) -> list[float]:
    return [batch["input"].sum().item() for batch in loader]


def test_every_setting_of_the_loader_stays():
    loader = trained_on(**SETTINGS).train_dataloader()
    kept = {name: getattr(loader, name) for name in SETTINGS}
    assert kept.pop("multiprocessing_context").get_start_method() == "fork"
    assert kept == {name: value for name, value in SETTINGS.items() if name in kept}
    assert loader.worker_init_fn is scale_by_two


def test_workers_keep_function_and_seed():
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(epoch(trained_on(num_workers=1).train_dataloader()))
        assert torch.equal(torch.get_rng_state(), before), "what the network draws stays as it is"
    assert found[0] == found[2] != found[1] and max(found[0]) > 6
