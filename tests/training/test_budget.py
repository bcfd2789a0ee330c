"""What a training took is counted as it runs: steps by the optimizer itself, and within an epoch."""

import pytest
import pytorch_lightning as pl
from digit_training import Net, train_digits
from torch import nn

from sparsefront.training.recipe import Recipe


class Watch(pl.Callback):
    """Counts what the optimizer and the network are really given."""

    def __init__(self) -> None:
        self.steps, self.rows = 0, 0

    def on_train_start(self, trainer, module):
        (optimizer,) = trainer.optimizers
        optimizer.register_step_post_hook(self.count_step)
        module.net[1].register_forward_hook(self.count_rows)

    def count_step(self, *_):
        self.steps += 1

    def count_rows(self, layer, inputs, output):
        self.rows += len(output) if layer.training else 0


def train(folder, watch, *, epochs, steps=None, accumulate=1, limit=None):
    trainer = {"accumulate_grad_batches": accumulate, "limit_batches": limit}
    net, options = Net(nn.Flatten(), nn.Linear(64, 10)), {"callbacks": (watch,)}
    return train_digits(net, folder, Recipe(epochs=epochs), steps=steps, batch_size=200, trainer=trainer, **options)


@pytest.mark.parametrize(
    ("how", "steps", "epochs", "samples"),
    [
        ({"epochs": 2}, 14, 2, 2 * 1294),  # 7 batches of an epoch, the last of 94 rows
        ({"epochs": 2, "steps": 9}, 9, 9 / 7, 1294 + 400),
        ({"epochs": 3, "accumulate": 3}, 9, 3, 3 * 1294),
        ({"epochs": 2, "limit": 4}, 8, 2, 1600),
        ({"epochs": 2, "steps": 3, "accumulate": 2, "limit": 4}, 3, 1.5, 1200),
    ],
    ids=["whole epochs", "within an epoch", "accumulated", "limited", "accumulated within an epoch"],
)
def test_counts_match_optimizer_and_network(tmp_path, how, steps, epochs, samples):
    watch = Watch()
    trained = train(tmp_path, watch, **how)
    assert (trained.steps, trained.samples) == (watch.steps, watch.rows) == (steps, samples)
    assert trained.epochs == pytest.approx(epochs) and trained.seconds > 0
