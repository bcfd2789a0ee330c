"""Trainings over several machines, played by processes of this one that meet over the network."""

import os
import socket
import time
from pathlib import Path

import pytest
from program_server import POLL_SECONDS, Program

from sparsefront.errors import InvalidSetting
from sparsefront.training import rank_processes
from sparsefront.training.machines import Machine, leading, this_machine
from sparsefront.training.rank_processes import RankFailed, on_every_rank
from sparsefront.training.trainer import TrainerSettings

TESTS = Path(__file__).resolve().parents[1]
TWO = TrainerSettings(accelerator="cpu", num_nodes=2, progress_bar=False)
LEND = (  # its ranks are forked, so that none imports torch again
    "import multiprocessing, sys; from sparsefront.training import lent_ranks, rank_processes\n"
    "from sparsefront.training.lent_ranks import lend_ranks\n"
    "from sparsefront.training.machines import Machine, announcements\n"
    "if __name__ == '__main__':\n"
    "    rank_processes.STARTED_BY = multiprocessing.get_context('fork')\n"
    "    lent_ranks.LOOK_EVERY_S = float((sys.argv[2:] or [lent_ranks.LOOK_EVERY_S])[0])\n"
    "    machine = Machine(1, 2, '127.0.0.1', int(sys.argv[1])); announcements(machine)\n"
    "    print('meets the first one', flush=True); lend_ranks(machine)"
)


@pytest.fixture
def machines(monkeypatch, bodies, request, programs):
    """This process as the first machine, and a process as the second one; a parameter = seconds between its looks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    looks = [str(request.param)] if hasattr(request, "param") else []
    second = programs.start(["-c", LEND, port, *looks], env=environment)
    for name, value in {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    yield this_machine(TWO), second
    second.kill()
    second.wait()


def wait_until_said(program: Program, words: str) -> None:
    deadline = time.monotonic() + 60
    while program.text("stdout") != words:
        assert time.monotonic() < deadline and program.poll() is None, program.text("stderr")
        time.sleep(POLL_SECONDS)


def test_ranks_of_two_machines_meet_for_one_training_after_another(machines, bodies, tmp_path):
    first, second = machines
    with leading(first):
        for _ in range(2):
            told = on_every_rank(bodies.statistics, trainer=TWO, folder=tmp_path, loggers=["logger"])["told"]
            assert [rank["index"] for rank in told] == [0, 1] and all(rank["count"] == 2 for rank in told)
            assert told[0]["loggers"] == ["logger"] and told[1]["loggers"] == []
    assert second.wait(60) == 0, "it hears that the run has ended"


def test_two_machines_end_with_the_same_masks_and_weights(machines, bodies, tmp_path):
    two = TrainerSettings(accelerator="cpu", num_nodes=2, limit_batches=6, progress_bar=False)
    with leading(machines[0]):
        one, other = on_every_rank(bodies.train_gradually, two, 2, trainer=two, folder=tmp_path, loggers=[])["ends"]
    for what in ("masks", "weights"):
        assert all((one[what][name] == other[what][name]).all() for name in one[what])
    assert one["steps"] == 6 and one["reached"] == other["reached"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "machine 1: rank 1 failed: ValueError: no room left"),
        ("killed", "machine 1: rank 1 failed: it ended"),
    ],
)
def test_a_rank_that_fails_elsewhere_ends_the_training(machines, bodies, tmp_path, how, message):
    first, second = machines
    with pytest.raises(RankFailed, match=message), leading(first):
        on_every_rank(bodies.fail, how, trainer=TWO, folder=tmp_path, loggers=[])
    assert second.wait(60) == 1 and "no room left" in second.text("stderr") or how == "killed"


@pytest.mark.parametrize("machines", [60], indirect=True)
def test_a_rank_that_dies_before_anybody_looked_at_it_is_noticed(machines, bodies, tmp_path):
    """Its first word, that it is ready, is still unread then."""
    with pytest.raises(RankFailed, match="machine 1: rank 1 failed: it ended"), leading(machines[0]):
        on_every_rank(bodies.fail, "killed", trainer=TWO, folder=tmp_path, loggers=[])
    assert machines[1].wait(60) == 1


def test_a_failure_of_the_first_machine_ends_the_others_ranks(machines, bodies, tmp_path, monkeypatch):
    monkeypatch.setattr(rank_processes, "REPORT_WAIT_S", 0.5)  # the other one has nothing to tell
    first, second = machines
    with pytest.raises(KeyError), leading(first):
        on_every_rank(bodies.fail, "rank 0", trainer=TWO, folder=tmp_path, loggers=[])
    assert second.wait(60) == 1


def test_a_machine_does_not_outlive_the_first_one(bodies, programs):
    """Which is killed while nothing is trained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lead = (
        "import sys, time; from sparsefront.training.machines import Announcements, Machine\n"
        "told = Announcements(Machine(0, 2, '127.0.0.1', int(sys.argv[1]))); print('listens', flush=True); time.sleep(600)"
    )
    first, second = programs.start(["-c", lead, port]), programs.start(["-c", LEND, port])
    try:
        wait_until_said(first, "listens\n")
        wait_until_said(second, "meets the first one\n")
        first.kill()
        assert second.wait(120) == 1 and "127.0.0.1, which leads, is gone" in second.text("stderr")
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


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
