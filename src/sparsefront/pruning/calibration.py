"""Importance of a network's weights, with gradients from training data where the score needs them."""

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch import Tensor

from sparsefront.importance.base import Importance
from sparsefront.tasks.base import Task


def score_weights(task: Task, layers: list[str], *, importance: Importance, train_loader: object) -> dict[str, Tensor]:
    """Scores of the layers' weights as they are now.

    Args:
        task: the network and its loss, on the device where scores are wanted.
        train_loader: batches of training data; read only where the score needs gradients.
    Returns:
        layer name -> float32 [N, K], larger = more worth keeping.
    """
    weights = {name: task.net.get_submodule(name).weight for name in layers}
    gradients = (
        _gradient_batches(task, weights, train_loader, importance.batches) if importance.needs_gradients else None
    )
    return importance.scores({name: weight.detach() for name, weight in weights.items()}, gradients)


def _gradient_batches(
    task: Task, weights: dict[str, Tensor], train_loader: object, batches: int
) -> Iterator[dict[str, Tensor]]:
    """Per batch, the gradient of the loss by each weight; dropout is off, so that scores do not depend on its draws."""
    was_training = task.net.training
    task.net.eval()
    names, parameters = list(weights), list(weights.values())
    device = parameters[0].device
    try:
        for batch in islice(cycle(train_loader), batches):
            batch = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}
            with (
                torch.enable_grad()
            ):  # left before yielding: a suspended generator would restore the mode at the wrong time
                loss = task.loss(task.net(**task.net_inputs(batch)), batch)
                gradients = torch.autograd.grad(loss, parameters)
            yield dict(zip(names, gradients, strict=True))
    finally:
        task.net.train(was_training)
