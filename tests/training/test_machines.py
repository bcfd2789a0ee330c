"""Trainings over several machines, played by processes of this one that meet over the network."""

import os
import pickle
import socket
from pathlib import Path

import pytest
import torch.distributed as dist
from program_server import Program
from waiting import wait_until
from whole_calls import on_every_rank

from sparsefront.errors import InvalidSetting, Obstacle
from sparsefront.training import machines as signatures
from sparsefront.training.machines import (
    SECRET,
    Announcements,
    Machine,
    leading,
    make_secret,
    read_secret,
    sign,
    this_machine,
)
from sparsefront.training.ranks import RankFailed
from sparsefront.training.trainer import TrainerSettings

TESTS = Path(__file__).resolve().parents[1]
TWO = TrainerSettings(accelerator="cpu", num_nodes=2, progress_bar=False)
LEND = (  # its ranks are forked, so that none imports torch again
    "import multiprocessing, sys; from pathlib import Path\n"
    "from sparsefront.training import ranks as lent_ranks; from sparsefront.training import ranks as rank_processes\n"
    "from sparsefront.training.ranks import lend_ranks\n"
    "from sparsefront.training.machines import Machine, announcements\n"
    "if __name__ == '__main__':\n"
    "    rank_processes.STARTED_BY = multiprocessing.get_context('fork')\n"
    "    lent_ranks.LOOK_EVERY_S = float((sys.argv[3:] or [lent_ranks.LOOK_EVERY_S])[0])\n"
    "    machine = Machine(1, 2, '127.0.0.1', int(sys.argv[1])); shared = Path(sys.argv[2])\n"
    "    announcements(machine, shared)\n"
    "    print('meets the first one', flush=True); lend_ranks(machine, shared)"
)


@pytest.fixture
def machines(monkeypatch, bodies, request, programs, tmp_path):
    """This process as the first machine, and a process as the second one; a parameter = seconds between its looks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    looks = [str(request.param)] if hasattr(request, "param") else []
    second = programs.start(["-c", LEND, port, tmp_path, *looks], env=environment)
    for name, value in {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    yield this_machine(TWO), second
    second.kill()
    second.wait()


def wait_until_said(program: Program, words: str) -> None:
    wait_until(lambda: program.text("stdout") == words, program)


def test_two_machines_train_twice(machines, bodies, tmp_path):
    first, second = machines
    with leading(first, tmp_path):
        for _ in range(2):
            told = on_every_rank(bodies.statistics, trainer=TWO, folder=tmp_path, loggers=["logger"], shared=tmp_path)[
                "told"
            ]
            assert [rank["index"] for rank in told] == [0, 1] and all(rank["count"] == 2 for rank in told)
            assert told[0]["loggers"] == ["logger"] and told[1]["loggers"] == []
    assert second.wait(600) == 0, "it hears that the run has ended"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "machine 1: rank 1 failed: ValueError: no room left"),
        ("killed", "machine 1: rank 1 failed: it ended"),
    ],
)
def test_rank_failing_elsewhere_ends_the_training(machines, bodies, tmp_path, how, message):
    first, second = machines
    with pytest.raises(RankFailed, match=message), leading(first, tmp_path):
        on_every_rank(bodies.fail, how, trainer=TWO, folder=tmp_path, loggers=[], shared=tmp_path)
    assert second.wait(600) == 1 and "no room left" in second.text("stderr") or how == "killed"


def test_no_machine_outlives_the_first(bodies, programs, tmp_path):
    """Which is killed while nothing is trained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lead = (
        "import sys, time; from pathlib import Path; from sparsefront.training.machines import Announcements, Machine\n"
        "told = Announcements(Machine(0, 2, '127.0.0.1', int(sys.argv[1])), Path(sys.argv[2]))\n"
        "print('listens', flush=True); time.sleep(600)"
    )
    first, second = programs.start(["-c", lead, port, tmp_path]), programs.start(["-c", LEND, port, tmp_path])
    try:
        wait_until_said(first, "listens\n")
        wait_until_said(second, "meets the first one\n")
        first.kill()
        assert second.wait(600) == 1 and "127.0.0.1, which leads, is gone" in second.text("stderr")
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


@pytest.fixture
def overheard(tmp_path):
    """The store of a first machine, which others write to as well, and the announcements as the second machine hears them."""
    name, secret = make_secret(tmp_path)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set(SECRET, name)
    return store, secret, Announcements(Machine(1, 2, "127.0.0.1", store.port), tmp_path)


class Marks:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_unsigned_announcement_is_not_read(overheard, tmp_path):
    store, _, heard = overheard
    stranger = pickle.dumps(Marks(tmp_path / "marker"))
    store.set("announced/0", sign(b"a guess".ljust(32), "announced/0", stranger))
    with pytest.raises(
        Obstacle, match=r"^MASTER_ADDR=127.0.0.1 MASTER_PORT=\d+: .* machine 0 has not signed: .*"
    ) as told:
        heard.next()
    assert "\n" not in str(told.value) and not (tmp_path / "marker").exists()
    pickle.loads(stranger)
    assert (tmp_path / "marker").exists(), "as it would have been"


def test_secret_is_readable_by_its_user(tmp_path, monkeypatch):
    name, secret = make_secret(tmp_path)
    file = tmp_path / signatures.FOLDER / name
    assert file.stat().st_mode & 0o777 == 0o600 and read_secret(tmp_path, name.encode()) == secret
    assert make_secret(tmp_path) != (name, secret)
    file.chmod(0o640)
    with pytest.raises(Obstacle, match=rf"{name}: belongs to user \d+ with mode 640: must be this user's"):
        read_secret(tmp_path, name.encode())
    file.chmod(0o600)
    monkeypatch.setattr(signatures.os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(Obstacle, match="start all machines as one user"):
        read_secret(tmp_path, name.encode())


def test_which_machine_this_is(monkeypatch):
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_NODEID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    assert this_machine(TrainerSettings(accelerator="cpu")) is None
    with pytest.raises(InvalidSetting, match="trainer.num_nodes=2: needs NODE_RANK, MASTER_ADDR, MASTER_PORT"):
        this_machine(TWO)
    slurm = {"SLURM_NODEID": "1", "SLURM_JOB_ID": "1234567", "SLURM_NODELIST": "gpu[07-08]"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert this_machine(TWO) == Machine(1, 2, "gpu07", 19567)
    monkeypatch.setenv("MASTER_PORT", "4000")
    assert this_machine(TWO) == Machine(1, 2, "gpu07", 4000)
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(InvalidSetting, match="must be above NODE_RANK=2"):
        this_machine(TWO)
