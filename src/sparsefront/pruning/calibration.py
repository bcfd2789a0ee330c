"""What scores ask of a network and its training data, in one process or over the ranks of a distributed run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sparsefront import distributed
from sparsefront.gpu_sharing.access import give_way
from sparsefront.importance.base import Importance
from sparsefront.module_modes import in_eval_mode
from sparsefront.pruning.encoder_text import given_encoder_text
from sparsefront.pruning.layer_inputs import in_order_of_use, sum_over_inputs
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.pruning.shared_weights import sharing_layers
from sparsefront.tasks.base import Batch, Task


def score_weights(
    task: Task,
    layers: list[str],
    *,
    importance: Importance,
    open_loader: Callable[[], Iterable[Batch]],
    movement: AccumulateMovement | None = None,
) -> dict[str, Tensor]:
    """Scores of the layers' weights as they are now; the same on every rank of a distributed run. Layers that share one weight
    have the mean of theirs.

    Args:
        task: the network and its loss, on the device where scores are wanted.
        open_loader: see `NetworkCalibration`.
        movement: the accumulator of the training, where the scores come from it.
    Returns:
        layer name -> float32 [N, K], larger = more worth keeping.
    """
    weights = {name: task.net.get_submodule(name).weight.detach() for name in layers}
    scores = importance.scores(weights, NetworkCalibration(task, layers, open_loader, movement))
    for names in sharing_layers(task.net, layers).values():
        if len(names) > 1:
            scores.update(dict.fromkeys(names, torch.stack([scores[name] for name in names]).mean(0)))
    return scores


class NetworkCalibration:
    """`importance.base.Calibration` of a network.

    Dropout is off and batch normalization uses its running statistics, so scores depend on no draw and leave no trace.
    Of the batches, rank r of R reads r, r + R, r + 2R, ...; the data goes round where there are too few.
    What layers are given at the padding of a text is left out.

    Args:
        task: the network and its loss, on the device of the computation.
        layers: names of Linear and Conv2d modules (in one group).
        open_loader: gives a new loader of training batches, each time from the same first batch and the same on every
            rank. So scores follow from the weights alone, and a resumed training makes the masks that it would have made.
        movement: see `score_weights`.
    """

    def __init__(
        self,
        task: Task,
        layers: list[str],
        open_loader: Callable[[], Iterable[Batch]],
        movement: AccumulateMovement | None = None,
    ) -> None:
        self._task = task
        self._modules = {name: task.net.get_submodule(name) for name in layers}
        self._open_loader, self._movement = open_loader, movement

    def gradients(self, batches: int) -> Iterator[Mapping[str, Tensor]]:
        """See `Calibration`."""
        weights = [module.weight for module in self._modules.values()]
        with in_eval_mode(self._task.net):
            for batch in self.batches(batches):
                # Left before yielding: a suspended generator would restore the gradient mode at the wrong time.
                with torch.enable_grad(), _requiring_gradients(weights):
                    loss = self._task.loss(self._forward(batch), batch)
                    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
                yield dict(zip(self._modules, gradients, strict=True))

    def input_sums(self, batches: int, statistic: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """See `Calibration`.

        Raises:
            ValueError: a layer that the network never calls; names it.
        """
        return self.sums_over(list(self._modules), self.batches(batches), statistic)

    def sums_over(
        self, layers: list[str], batches: Iterable[Batch], statistic: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """`input_sums` of some of the layers over batches of this rank that were read before."""
        modules = {name: self._modules[name] for name in layers}
        with in_eval_mode(self._task.net), given_encoder_text(self._task.net, modules) as of_that_text:
            return sum_over_inputs(
                self._forward,
                batches,
                modules,
                statistic,
                real_positions=real_positions,
                of_that_text=of_that_text,
            )

    def order_of_use(self) -> list[list[str]]:
        """The layers in groups, in the order of the network: see `layer_inputs.in_order_of_use`. The same on every rank."""
        with in_eval_mode(self._task.net):
            return in_order_of_use(self._forward, self._on_device(next(self._all_batches())), self._modules)

    def movement(self) -> dict[str, Tensor]:
        """See `Calibration`."""
        if self._movement is None:
            raise ValueError("movement scores come from training, and this network is not being trained")
        return self._movement.sums()

    def total(self, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Calibration`. Ranks pass the same layers in the same order."""
        for name in statistics:  # one at a time: a rank's own sum is freed as soon as the total is there
            statistics[name] = distributed.all_reduce_sum(statistics[name])
        return statistics

    def batches(self, count: int) -> Iterator[Batch]:
        """This rank's share of the first `count` batches, on the network's device.

        Raises:
            ValueError: there is no training data.
        """
        for batch in islice(self._all_batches(), distributed.rank(), count, distributed.world_size()):
            give_way(self._device)
            yield self._on_device(batch)

    def _all_batches(self) -> Iterator[Batch]:
        while True:
            read = 0
            for batch in self._open_loader():
                read += 1
                yield batch
            if read == 0:
                raise ValueError("there is no batch of training data to calibrate on")

    @property
    def _device(self) -> torch.device:
        return next(iter(self._modules.values())).weight.device

    def _on_device(self, batch: Batch) -> Batch:
        return {key: value.to(self._device) if torch.is_tensor(value) else value for key, value in batch.items()}

    def _forward(self, batch: Batch) -> Any:
        return self._task.net(**self._task.net_inputs(batch))


@contextmanager
def _requiring_gradients(weights: list[Tensor]) -> Iterator[None]:
    """Frozen weights are scored as others are, and are frozen afterwards."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def real_positions(batch: Batch) -> Tensor | None:
    """Bool [B, length], the tokens of a text batch that are no padding, of two texts (see `encoder_text`) the first's; None where
    batches are not text.
    """
    return batch["attention_mask"].bool() if "attention_mask" in batch else None
