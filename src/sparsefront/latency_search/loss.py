"""The loss of a network whose layers are pruned for a while."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsefront.latency_search.masked_layers import masked
from sparsefront.module_modes import in_eval_mode
from sparsefront.tasks.base import Batch, Task


@torch.no_grad()
def pruned_loss(task: Task, masks: Mapping[str, Tensor], batches: Sequence[Batch]) -> float:
    """Mean over the batches, in eval mode; the network is then as it was.

    Args:
        masks: layer -> bool [N, K], True = keep.
        batches: at least one, on the network's device.
    """
    net = task.net
    with in_eval_mode(net), masked(net, masks):
        found = [float(task.loss(net(**task.net_inputs(batch)), batch)) for batch in batches]
    return sum(found) / len(found)
