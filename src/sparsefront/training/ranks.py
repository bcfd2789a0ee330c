"""Run one training body in several processes, one per device, on this node and, with `machines`, on others."""

import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from sparsefront.errors import InvalidSetting
from sparsefront.processes import end_with_parent
from sparsefront.training.machines import Announcements, Machine, Training, announcements, this_machine
from sparsefront.training.trainer import TrainerSettings

HOST = "127.0.0.1"
# Generous: rank 0 may write a large checkpoint while the others wait. A dead rank is noticed immediately.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class RankGroup:
    """The rendezvous (host and port of rank 0's store on node 0) and the ranks of this node."""

    world_size: int
    port: int
    on_gpu: bool
    host: str = HOST
    machine: int = 0
    machines: int = 1

    @property
    def ranks_here(self) -> range:
        """The ranks of this node."""
        each = self.world_size // self.machines
        return range(self.machine * each, (self.machine + 1) * each)

    def local(self, rank: int) -> int:
        """Local rank on its node."""
        return rank - self.ranks_here.start


@contextmanager
def member(rank: int, group: RankGroup, store: dist.Store) -> Iterator[None]:
    """Context in which this process is a rank, for torch and Lightning; restored on exit."""
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
    """Environment variables that tell Lightning that another program started its processes."""
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
    """Leave the group immediately: NCCL operations with a dead rank would never finish."""
    dist.distributed_c10d._abort_process_group()


# Run a training body in one process per device, without a Lightning launcher.
#
# Lightning's script launcher reruns the command, which would start Hydra's sweep a second time and deadlock on the
# stage's own lock; its spawn launchers return weights through files and lose the callbacks' state. Here the main process
# is rank 0 and continues with what it trained.

log = logging.getLogger(__name__)
START_LIMIT = "SPARSEFRONT_START_SECONDS"  # environment variable
REPORT_WAIT_S = 5  # a failed rank reports its reason shortly after the others notice
LOOK_EVERY_S = 1.0  # between checks for other nodes' failures
STARTED_BY = multiprocessing.get_context("spawn")  # fork breaks CUDA and locks


class RankFailed(RuntimeError):
    """A process of a distributed training failed; includes its message."""


@dataclass(frozen=True)
class _Report:
    """The final message of a failed rank."""

    message: str
    trace: str
    time: float


@contextmanager
def other_ranks_running(
    body: Callable[..., Any], *arguments: Any, trainer: TrainerSettings, shared: Path | None = None
) -> Iterator[None]:
    """Context in which all other ranks run the training body that this process runs as rank 0.

        with other_ranks_running(train, *arguments, trainer=trainer):
            train(*arguments, folder, loggers)

    The other ranks (`trainer.devices` per node, including this one) get the same arguments, a scratch folder and no loggers,
    so the body can write its files without knowing its rank. They share one process group until the block ends, across all of
    its fits. With one device on one node there are none.

    Args:
        body: importable by name and with arguments that can be pickled.
        shared: the folder that all nodes see, cache_dir; only used with several nodes.
    Raises:
        InvalidSetting: raised by the block.
        RankFailed: another process failed or died; includes its message and stack trace.
    """
    if trainer.world_size == 1:
        yield
        return
    log.info("starting %d processes", trainer.world_size)
    machine = this_machine(trainer)
    host, elsewhere = HOST, None
    if machine is not None:
        assert shared is not None  # `pipeline` passes it for all runs on several nodes
        host, elsewhere = machine.host, announcements(machine, shared)
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    group = RankGroup(trainer.world_size, store.port, trainer.on_gpu, host, machines=trainer.num_nodes)
    if elsewhere is not None:
        elsewhere.announce(Training(body, arguments, trainer, store.port))
        minutes = COLLECTIVE_TIMEOUT.total_seconds() / 60
        numbers = ", ".join(map(str, range(1, trainer.num_nodes)))
        others_at = f"NODE_RANK={numbers} at MASTER_ADDR={host} MASTER_PORT={elsewhere.port}"
        log.info("waiting for the same command on the other machines, %s, for at most %g minutes", others_at, minutes)
    with _start(group.ranks_here[1:], group, body, arguments) as others:
        try:
            for other in others:
                other.wait_until_ready(start_limit_s())
            with member(0, group, store), _watch(others, group, elsewhere):
                try:
                    yield
                except InvalidSetting:  # every rank raises the same one
                    raise
                except Exception as error:  # any type: after an abort, torch complains about a missing process group
                    _raise_if_another_failed_first(others, elsewhere, time.time(), error)
                    raise
            for other in others:
                other.wait_until_done()
        except BaseException as error:
            if elsewhere is not None:
                elsewhere.fail(f"{type(error).__name__}: {error}")
            raise


@contextmanager
def _start(ranks: Iterable[int], group: RankGroup, body: Callable, arguments: tuple) -> Iterator[list["OtherRank"]]:
    """Context of ranks in processes of this node, which end with it."""
    scratch = Path(tempfile.mkdtemp(prefix="ranks-"))
    started: list[OtherRank] = []
    try:
        for rank in ranks:
            started.append(OtherRank(rank, group, body, arguments, scratch / f"rank_{rank}"))
        yield started
    finally:
        for rank in started:
            rank.end()
        shutil.rmtree(scratch, ignore_errors=True)


def start_limit_s() -> float:
    """Seconds in which a process must have imported what it needs: `SPARSEFRONT_START_SECONDS`, as it depends on the machine."""
    text = os.environ.get(START_LIMIT, "1800")
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise InvalidSetting(START_LIMIT, text, "must be a number of seconds greater than 0")
    return float(text)


class OtherRank:
    """A rank in another process."""

    def __init__(self, rank: int, group: RankGroup, body: Callable, arguments: tuple, folder: Path) -> None:
        self.rank = rank
        self._reports, theirs = multiprocessing.Pipe(duplex=False)
        self.process = STARTED_BY.Process(target=_other_rank, args=(rank, group, body, arguments, folder, theirs))
        with environment(rank, group):
            self.process.start()
        theirs.close()  # so that EOF is seen when the process ends

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait until it has imported what it needs, before anything depends on it; a dead one is noticed at once."""
        if not self._reports.poll(limit_s):
            raise RankFailed(f"rank {self.rank} did not start within {limit_s:g} s; {START_LIMIT} is the limit")
        self.raise_if_failed()

    def wait_until_done(self) -> None:
        """Wait for its end after this process has finished the body."""
        self.process.join(COLLECTIVE_TIMEOUT.total_seconds())
        self.raise_if_failed()

    def failure(self, within_s: float = 0.0) -> _Report | None:
        """Why it failed, waiting this long for its report; None if it did not."""
        try:
            while self._reports.poll(within_s):
                report = self._reports.recv()
                if report is not None:  # None = the ready message, possibly still unread
                    return report
            return None
        except EOFError:
            self.process.join(COLLECTIVE_TIMEOUT.total_seconds())
            if self.process.exitcode == 0:
                return None
            return _Report(f"it ended with exit code {self.process.exitcode}", "", 0.0)

    def raise_if_failed(self) -> None:
        report = self.failure()
        if report is not None:
            raise RankFailed(self.describe(report))

    def describe(self, report: _Report) -> str:
        return f"rank {self.rank} failed: {report.message}" + (f"\n{report.trace}" if report.trace else "")

    def end(self) -> None:
        """Kill it. There is nothing to save, and Lightning would delay a SIGTERM until the next step."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._reports.close()


def _other_rank(
    rank: int, group: RankGroup, body: Callable, arguments: tuple, folder: Path, reports: Connection
) -> None:
    """The main function of the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C rank 0 ends the others
    end_with_parent()  # otherwise the others would outlive a killed rank 0 until their timeout
    with reports, _report_error(reports):
        folder.mkdir(parents=True)
        reports.send(None)
        store = dist.TCPStore(group.host, group.port, is_master=False)
        with member(rank, group, store), _report_error(reports):  # report now: others notice when it leaves
            body(*arguments, folder, [])
    _leave()


def _leave() -> NoReturn:
    """End this process after its work is reported, skipping the interpreter's shutdown.

    Shutdown would tear down library threads that still run, and occasionally call std::terminate, which rank 0 would take for
    a failed training.
    """
    for child in multiprocessing.active_children():  # workers of data loaders
        child.terminate()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _report_error(reports: Connection) -> Iterator[None]:
    """Context that reports an error to rank 0 and ends this process."""
    try:
        yield
    except Exception as error:
        reports.send(_Report(f"{type(error).__name__}: {error}", traceback.format_exc(), time.time()))
        raise SystemExit(1) from None


@contextmanager
def _watch(others: list[OtherRank], group: RankGroup, elsewhere: Announcements | None) -> Iterator[None]:
    """Context that aborts NCCL when a rank dies, which NCCL, unlike gloo, would only notice at its timeout."""
    if not group.on_gpu:
        yield
        return
    finished, sender = multiprocessing.Pipe(duplex=False)

    def watch() -> None:
        alive = {other.process.sentinel: other for other in others}
        while alive or elsewhere is not None:
            if elsewhere is not None and elsewhere.failure() is not None:
                abort()
                return
            for ended in wait([finished, *alive], None if elsewhere is None else LOOK_EVERY_S):
                if ended is finished:
                    return
                if alive.pop(ended).process.exitcode != 0:
                    abort()
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        sender.send(None)
        watcher.join()


def _raise_if_another_failed_first(
    others: list[OtherRank], elsewhere: Announcements | None, failed_at: float, error: Exception
) -> None:
    """Prefer the report of a dead rank over the broken collectives that it causes elsewhere."""
    deadline = time.time() + REPORT_WAIT_S
    for other in others:
        report = other.failure(max(0.0, deadline - time.time()))
        if report is not None and report.time < failed_at:
            raise RankFailed(other.describe(report)) from error
    while elsewhere is not None and time.time() < deadline:
        reason = elsewhere.failure()
        if reason is not None:
            raise RankFailed(reason) from error
        time.sleep(0.1)


LISTEN_EVERY_S = 0.2


def lend_ranks(machine: Machine, shared: Path) -> None:
    """Train for node 0 until its run ends.

    Args:
        shared: the folder that all nodes see, cache_dir.
    Raises:
        Obstacle: an announcement is not from node 0.
        RankFailed: a training failed, here or elsewhere; or node 0 is gone.
    """
    log.info("machine %d trains for %s, which leads", machine.index, machine.host)
    feed, failure = announcements(machine, shared), None
    while True:
        try:
            training = feed.next()
        except RuntimeError as error:
            raise RankFailed(f"{machine.host}, which leads, is gone: {error}") from error
        if training is None:
            break
        failure = _train(training, machine, feed)
    if failure is not None:
        raise RankFailed(failure)


def _train(training: Training, machine: Machine, feed: Announcements) -> str | None:
    """Run this node's ranks to their end; returns why they, or another node's, failed."""
    trainer = training.trainer
    group = RankGroup(trainer.world_size, training.port, trainer.on_gpu, machine.host, machine.index, trainer.num_nodes)
    try:
        with _start(group.ranks_here, group, training.body, training.arguments) as running:
            while running:
                wait([rank.process.sentinel for rank in running], LISTEN_EVERY_S)
                # before the processes' status: an ended one has reported everything
                alive = [rank for rank in running if rank.process.is_alive()]
                for rank in running:
                    rank.raise_if_failed()
                running = alive
                if running and (elsewhere := feed.failure()) is not None:
                    return elsewhere
    except RankFailed as error:
        feed.fail(f"machine {machine.index}: {error}")
        return str(error)
    except RuntimeError as error:
        raise RankFailed(f"{machine.host}, which leads, is gone: {error}") from error
    return None
