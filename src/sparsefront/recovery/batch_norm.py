"""Running statistics of batch normalization, taken again where nothing trains after pruning.

What a pruned layer gives has another mean and variance than what the next BatchNorm was trained with. Training repairs that by
itself; without any, the statistics of the dense network can cost more accuracy than the pruned weights did.
"""

import logging
from itertools import chain

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefront import distributed
from sparsefront.module_modes import in_eval_mode
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.recovery.base import Round

log = logging.getLogger(__name__)


@torch.no_grad()
def retake_batch_norm(round: Round, batches: int | None) -> None:
    """Take the running mean and variance of every BatchNorm of `round.net` anew, in place, as plain averages over batches.

    All else stays in eval mode: `torch.optim.swa_utils.update_bn` would switch on dropout, which disturbs what is averaged. A
    batch of one row has no variance and is left out. Ranks average theirs.

    Args:
        batches: of training data, at most one epoch; None = the statistics stay. A network without BatchNorm reads none.
    """
    norms = [norm for norm in round.net.modules() if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
    if batches is None or not norms:
        return
    round.net.to(torch.device(round.setup.trainer.device))
    task = round.make_task(None)
    calibration = NetworkCalibration(task, list(round.masks), round.data.train_dataloader)
    momenta = [norm.momentum for norm in norms]
    before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    read = 0
    with in_eval_mode(round.net):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # of a cumulative average
            norm.train()
        for batch in calibration.batches(min(batches, len(round.data.train_dataloader()))):
            inputs = task.net_inputs(batch)
            if len(next(value for value in inputs.values() if isinstance(value, Tensor))) > 1:
                round.net(**inputs)
                read += 1
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    _average_over_ranks(norms, read)
    if sum(distributed.all_gather(read)) == 0:
        log.warning("BatchNorm statistics stay those of the dense network: every training batch has one row")
        for norm, (mean, variance) in zip(norms, before, strict=True):
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


def _average_over_ranks(norms: list[_BatchNorm], read: int) -> None:
    """By how many batches each rank read."""
    total = sum(distributed.all_gather(read))
    if distributed.world_size() == 1 or total == 0:
        return
    for statistic in chain.from_iterable((norm.running_mean, norm.running_var) for norm in norms):
        statistic.copy_(distributed.all_reduce_sum(statistic * read) / total)
