"""The process group of a training on several ranks: where they meet, and one process as a member of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

HOST = "127.0.0.1"
# Generous: rank 0 may write a large checkpoint while the others wait. A rank that dies is noticed at once.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class RankGroup:
    """Where the ranks meet: the port of rank 0's store, on the first machine; and which ranks this machine has."""

    world_size: int
    port: int
    on_gpu: bool
    host: str = HOST
    machine: int = 0
    machines: int = 1

    @property
    def ranks_here(self) -> range:
        """Those of this machine."""
        each = self.world_size // self.machines
        return range(self.machine * each, (self.machine + 1) * each)

    def local(self, rank: int) -> int:
        """Number of a rank among those of its machine."""
        return rank - self.ranks_here.start


@contextmanager
def member(rank: int, group: RankGroup, store: dist.Store) -> Iterator[None]:
    """This process as a rank, to torch and to Lightning; afterwards as it was."""
    threads = torch.get_num_threads()
    with environment(rank, group):
        if group.on_gpu:
            torch.cuda.set_device(group.local(rank))
        else:
            torch.set_num_threads(max(1, threads // len(group.ranks_here)))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if group.on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=group.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        try:
            yield
        except BaseException:
            if group.on_gpu and dist.is_initialized():
                abort()
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            torch.set_num_threads(threads)


@contextmanager
def environment(rank: int, group: RankGroup) -> Iterator[None]:
    """The variables by which Lightning knows that its processes were started by another program."""
    values = {
        "LOCAL_RANK": group.local(rank),
        "NODE_RANK": group.machine,
        "WORLD_SIZE": group.world_size,
        "MASTER_ADDR": group.host,
        "MASTER_PORT": group.port,
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def abort() -> None:
    """Leave the group at once: what NCCL has begun with a rank that is gone would never end."""
    dist.distributed_c10d._abort_process_group()
