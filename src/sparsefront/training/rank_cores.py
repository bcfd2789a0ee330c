"""The share of a machine's cores that one rank runs on.

A rank that trains on a GPU is one thread that launches kernels and another that runs backward. Left alone, the scheduler of a
virtual machine, which may not be told which of its processors are two threads of one core, may put those of two ranks on one.
"""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


@contextmanager
def own_cores(local_rank: int, ranks: int, topology: Path = TOPOLOGY) -> Iterator[None]:
    """All threads of this process on the share of this rank, and afterwards where they were. Where there are fewer cores than
    ranks, or the system cannot tell, nothing changes.

    Args:
        local_rank: number of the rank among the `ranks` of this machine.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux alone has it
        yield
        return
    before = os.sched_getaffinity(0)
    share = share_of(before, local_rank, ranks, topology)
    _bind(share)
    try:
        yield
    finally:
        _bind(before)


def share_of(processors: Set[int], local_rank: int, ranks: int, topology: Path = TOPOLOGY) -> set[int]:
    """The processors of one of `ranks` equal runs of whole cores, each on as few sockets as can be; all of them if cores do not
    suffice.
    """
    cores: dict[tuple[int, ...], list[int]] = {}
    for processor in sorted(processors):
        cores.setdefault(_core(processor, topology), []).append(processor)
    if len(cores) < ranks:
        return set(processors)
    ordered = [cores[place] for place in sorted(cores)]
    first, end = (len(ordered) * rank // ranks for rank in (local_rank, local_rank + 1))
    return {processor for core in ordered[first:end] for processor in core}


def _core(processor: int, topology: Path) -> tuple[int, ...]:
    """Socket and core of a processor; where the system does not tell, it is a core of its own."""
    try:
        names = ("physical_package_id", "core_id")
        return tuple(int((topology / f"cpu{processor}" / "topology" / name).read_text()) for name in names)
    except (OSError, ValueError):
        return (0, processor)


def _bind(processors: Set[int]) -> None:
    """Threads that begin later run where the one that starts them does."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), processors)
        except ProcessLookupError:  # it has ended since
            continue
