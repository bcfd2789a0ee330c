"""The loss of a network whose layers are pruned for a while."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from sparsefront.module_modes import in_eval_mode
from sparsefront.tasks.base import Batch, Task


@torch.no_grad()
def pruned_loss(task: Task, pruned: AbstractContextManager[None], batches: Sequence[Batch]) -> float:
    """Mean over the batches, in eval mode; the network is then as it was.

    Args:
        pruned: see `other_weights`; entered once.
        batches: at least one, on the network's device.
    """
    net = task.net
    with in_eval_mode(net), pruned:
        found = [float(task.loss(net(**task.net_inputs(batch)), batch)) for batch in batches]
    return sum(found) / len(found)
