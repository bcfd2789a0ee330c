"""What an exchange of all gradients takes with nothing beside it."""

from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from sparsefront import distributed

BUCKET = 25 * 2**20  # bytes that DDP exchanges at a time
REPEATS = 10


def exchange_times_ms(net: nn.Module) -> dict[str, float | str]:
    """Milliseconds to sum as many values as the network has parameters over the ranks, in fp32 and in bf16; every rank asks.
    Empty where there is one.
    """
    dtypes = {"exchange_alone_ms": torch.float32, "exchange_alone_bf16_ms": torch.bfloat16}
    if distributed.world_size() == 1:
        return dict.fromkeys(dtypes, "")
    size = sum(parameter.numel() for parameter in net.parameters())
    return {name: round(_exchange_ms(size, dtype), 3) for name, dtype in dtypes.items()}


def _exchange_ms(size: int, dtype: torch.dtype) -> float:
    """The median, in pieces as DDP takes them."""
    piece = torch.zeros(BUCKET // 4, dtype=dtype, device="cuda")  # as many values as a bucket of fp32 holds
    taken = []
    for _ in range(REPEATS + 2):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        began.record()
        for _ in range(-(-size // piece.numel())):
            dist.all_reduce(piece)
        ended.record()
        torch.cuda.synchronize()
        taken.append(began.elapsed_time(ended))
    return median(taken[2:])
