"""Multi-node training: node 0 leads, signs and announces each training; the other nodes provide their processes."""

import hmac
import logging
import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sparsefront.errors import InvalidSetting, Obstacle
from sparsefront.training.trainer import TrainerSettings

log = logging.getLogger(__name__)

# Nodes communicate over an untrusted network, so messages are signed with a secret in the shared cache.
#
# Node 0 creates a secret per process, in a file below `cache_dir` that only its user can read; the file's name is
# public. Whoever can read the file may sign (HMAC-SHA256). Nothing is unpickled before its signature is verified.

FOLDER = ".machines"  # in the cache; the dot hides it from the list of stages
SEEN_WITHIN_S = 60.0  # until a network file system shows a file to other nodes
UNUSED_AFTER_S = 24 * 3600.0  # the others read a secret when they start
SIZE = 32
NOBODY = 65534  # user id to which network file systems map root


def make_secret(shared: Path) -> tuple[str, bytes]:
    """Create a secret; returns the name by which the other nodes find it, and its bytes.

    Args:
        shared: the folder that all nodes see, cache_dir.
    """
    folder = shared / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):  # another user's
            if time.time() - old.stat().st_mtime > UNUSED_AFTER_S:
                old.unlink()
    name, secret = secrets.token_hex(16), secrets.token_bytes(SIZE)
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)
    return name, secret


def read_secret(shared: Path, name: bytes) -> bytes:
    """Read the secret that node 0 created.

    Args:
        name: from the store, untrusted.
    Raises:
        Obstacle: an invalid name, or a file that is missing, incomplete, or accessible to other users.
    """
    text = name.decode(errors="replace")
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise Obstacle(
            "MASTER_PORT", None, "is not the port of sparsefront's first machine: choose one that is free there"
        )
    file, ends = shared / FOLDER / text, time.monotonic() + SEEN_WITHIN_S
    while True:
        try:
            file_stat = file.stat()
            if file_stat.st_size == SIZE:
                break
        except FileNotFoundError:
            pass
        if time.monotonic() > ends:
            why = "machine 0 wrote it, and it cannot be seen here: give all machines one cache_dir, on a shared file system"
            raise Obstacle(str(file), None, why)
        time.sleep(0.1)
    owners = (os.geteuid(), NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
    if file_stat.st_mode & 0o077 or file_stat.st_uid not in owners:
        why = f"belongs to user {file_stat.st_uid} with mode {file_stat.st_mode & 0o777:03o}"
        remedy = "must be this user's, readable by nobody else; start all machines as one user"
        raise Obstacle(str(file), None, f"{why}: {remedy}")
    return file.read_bytes()


def signed(secret: bytes, key: str, content: bytes) -> bytes:
    """Prepend a signature that is valid for this key only."""
    return _signature(secret, key, content) + content


def content_of(secret: bytes, key: str, received: bytes) -> bytes | None:
    """Verify and return the content passed to `signed`; None if secret, key or content differ."""
    signature, content = received[: sha256().digest_size], received[sha256().digest_size :]
    return content if hmac.compare_digest(signature, _signature(secret, key, content)) else None


def _signature(secret: bytes, key: str, content: bytes) -> bytes:
    return hmac.digest(secret, key.encode() + b"\0" + content, "sha256")


# Multi-node training: the same command runs on each node; node 0 leads, the others provide their processes.
#
# Node 0 runs the stages. It announces each training in a store that the others read (`MASTER_ADDR`, `MASTER_PORT`): the
# function that every rank runs, its arguments, and the rendezvous of the ranks. The others start their ranks and wait
# for the next training until the run ends. So nothing is computed twice, and no stage waits for another node's lock.
# Anybody on the network can write to that store, so announcements are signed: see `signed`.

STARTS_WITHIN = timedelta(minutes=30)  # between the nodes
HEARS_WITHIN_S = 10.0  # until the other nodes notice that a run has ended
PAUSE_S = 0.1
SECRET = "secret"  # key of the secret's name in the store


@dataclass(frozen=True)
class Machine:
    """This node: its index from 0, the number of nodes, and the address of node 0."""

    index: int
    count: int
    host: str
    port: int


def this_machine(trainer: TrainerSettings) -> Machine | None:
    """Identify this node from NODE_RANK, MASTER_ADDR and MASTER_PORT, else from Slurm's variables; None for a single node.

    Raises:
        InvalidSetting: neither identifies this node, or the numbers do not match.
    """
    if trainer.num_nodes == 1:
        return None
    variables = _from_slurm() | {name: os.environ[name] for name in _NAMES if name in os.environ}
    missing = [name for name in _NAMES if name not in variables]
    if missing:
        allowed = f"needs {', '.join(missing)} in the environment: start the same command on every machine, each with its number"
        raise InvalidSetting("trainer.num_nodes", trainer.num_nodes, allowed)
    machine = Machine(
        int(variables["NODE_RANK"]), trainer.num_nodes, variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    )
    if not 0 <= machine.index < trainer.num_nodes:
        allowed = f"must be above NODE_RANK={machine.index}, which counts from 0"
        raise InvalidSetting("trainer.num_nodes", trainer.num_nodes, allowed)
    return machine


_NAMES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def _from_slurm() -> dict[str, str]:
    """For a Slurm step with one task per node; the port is derived from the job id, as in Lightning."""
    if "SLURM_NODEID" not in os.environ or "SLURM_JOB_ID" not in os.environ:
        return {}
    from pytorch_lightning.plugins.environments import SLURMEnvironment

    address = SLURMEnvironment.resolve_root_node_address(os.environ.get("SLURM_NODELIST", ""))
    port = str(15000 + int(os.environ["SLURM_JOB_ID"][-4:]))
    return {"NODE_RANK": os.environ["SLURM_NODEID"], "MASTER_ADDR": address, "MASTER_PORT": port}


@dataclass(frozen=True)
class Training:
    """One training: the function that every rank runs, and the port of the ranks' store."""

    body: Callable[..., Any]
    arguments: tuple
    trainer: TrainerSettings
    port: int


class Announcements:
    """Numbered messages from node 0 to the others, through one store per process lifetime.

    Args:
        machine: this node; node 0 creates the store, the others wait for it.
        shared: the folder that all nodes see, cache_dir, which contains the store's secret.
    Raises:
        Obstacle: this node cannot read the secret of node 0.
    """

    def __init__(self, machine: Machine, shared: Path) -> None:
        leads = machine.index == 0
        if leads:
            name, self._secret = make_secret(shared)
        else:
            minutes = STARTS_WITHIN.total_seconds() / 60
            where = f"MASTER_ADDR={machine.host} MASTER_PORT={machine.port}"
            log.info("waiting for the same command on machine 0, %s, for at most %g minutes", where, minutes)
        self._store = dist.TCPStore(
            machine.host, machine.port, is_master=leads, wait_for_workers=False, timeout=STARTS_WITHIN
        )
        if leads:
            self._store.set(SECRET, name)
        else:
            self._secret = read_secret(shared, self._store.get(SECRET))
        self._machine, self._number = machine, -1
        self.port = machine.port

    def announce(self, training: Training | None) -> None:
        """Announce the next training; None ends the run and waits until the other nodes have noticed."""
        self._number += 1
        key = f"announced/{self._number}"
        self._store.set(key, signed(self._secret, key, pickle.dumps(training)))
        if training is None:
            heard = [f"heard/{self._number}/{other}" for other in range(1, self._machine.count)]
            ends = time.monotonic() + HEARS_WITHIN_S
            while not self._store.check(heard) and time.monotonic() < ends:
                time.sleep(PAUSE_S)

    def next(self) -> Training | None:
        """Wait for the next announcement.

        Raises:
            RuntimeError: node 0 is gone.
            Obstacle: the message is not from node 0.
        """
        self._number += 1
        key = f"announced/{self._number}"
        while not self._store.check([key]):
            time.sleep(PAUSE_S)
        content = content_of(self._secret, key, self._store.get(key))
        if content is None:
            store = f"MASTER_ADDR={self._machine.host} MASTER_PORT={self._machine.port}"
            why = "announces a training that machine 0 has not signed: another program writes there; nothing of it was read"
            raise Obstacle(store, None, f"{why}. Start again with another MASTER_PORT, on a network that you trust")
        training: Training | None = pickle.loads(content)
        if training is None:
            self._store.set(f"heard/{self._number}/{self._machine.index}", "")
        return training

    def fail(self, message: str) -> None:
        """Report that a rank failed in the current training; the first report wins."""
        self._store.compare_set(f"failed/{self._number}", "", message)

    def failure(self) -> str | None:
        """Why the current training failed on another node; None if it did not.

        Raises:
            RuntimeError: node 0 is gone.
        """
        key = f"failed/{self._number}"
        return self._store.get(key).decode() if self._store.check([key]) else None


announcements = cache(Announcements)


@contextmanager
def leading(machine: Machine | None, shared: Path) -> Iterator[None]:
    """Context of a run on node 0 that tells the other nodes when it ends, however it does. `shared`: cache_dir."""
    try:
        yield
    finally:
        if machine is not None:
            announcements(machine, shared).announce(None)
