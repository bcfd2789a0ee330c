"""The loss of a network whose layers are pruned for a while."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from sparsefront.tasks.base import Batch, Task


@torch.no_grad()
def pruned_loss(task: Task, pruned: AbstractContextManager[None], batches: Sequence[Batch]) -> float:
    """Mean over the batches, in eval mode; the network is then as it was.

    Args:
        pruned: see `other_weights`; entered once.
        batches: at least one, on the network's device.
    """
    net = task.net
    was_training = net.training
    net.eval()
    try:
        with pruned:
            found = [float(task.loss(net(**task.net_inputs(batch)), batch)) for batch in batches]
    finally:
        net.train(was_training)
    return sum(found) / len(found)
