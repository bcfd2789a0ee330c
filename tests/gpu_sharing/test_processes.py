"""Processes that share a stand-in for a GPU: timings are alone, and nobody waits for ever."""

import json
import time
from pathlib import Path

import pytest
import torch
from program_server import Program
from waiting import wait_until

from sparsefront import gpu

pytest.importorskip("fcntl", reason="locks of POSIX systems")
SCRIPT = Path(__file__).with_name("processes.py")
CPU = torch.device("cpu")


@pytest.fixture
def start(tmp_path, monkeypatch, programs):
    """start(what) -> the process and the file that it writes; this process uses the same stand-in."""
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    processes = []

    def make(what: str) -> tuple[Program, Path]:
        file = tmp_path / f"{len(processes)}.{what}"
        processes.append(programs.start([SCRIPT, what, file]))
        return processes[-1], file

    yield make
    for process in processes:
        process.kill()
        process.wait()


def wait_for(file: Path) -> None:
    wait_until(lambda: file.exists() and file.read_text())


def is_free(*, alone: bool) -> bool:
    """Whether this process could have the lock at once."""
    gate = gpu._access_to(CPU).gate
    free = not gate.exclusive_wanted() and gate._lock.take(shared=not alone, wait=False)
    gate.leave()
    return free


def intervals(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def overlap(one: list[dict], other: list[dict]) -> float:
    """Seconds in which both worked."""
    return sum(max(0.0, min(a["end"], b["end"]) - max(a["start"], b["start"])) for a in one for b in other)


def test_trainings_share_and_timings_are_alone_and_come_in(start):
    trainers = [start("train") for _ in range(2)]
    for _, file in trainers:
        wait_for(file)
    wait_until(lambda: overlap(*(intervals(file) for _, file in trainers)) > 0)  # they run side by side
    timers = [start("measure") for _ in range(2)]
    assert [process.wait() for process, _ in timers] == [0, 0], "two train all the time, and they come in"
    for _, file in trainers:
        file.with_name(f"{file.name}.enough").touch()
    assert [process.wait() for process, _ in trainers] == [0, 0]
    trained, timed = [intervals(file) for _, file in trainers], [intervals(file) for _, file in timers]
    assert [len(one) for one in timed] == [5, 5] and overlap(*timed) == 0
    assert all(overlap(timer, trainer) == 0 for timer in timed for trainer in trained)


@pytest.mark.parametrize("how", ["hold_alone", "hold_shared"])
def test_a_killed_process_holds_nothing(start, how):
    process, file = start(how)
    wait_for(file)
    waiting, waits = start("hold_alone")
    time.sleep(0.5)
    assert not waits.exists()
    process.kill()
    process.wait()
    wait_for(waits)
    waiting.kill()
    waiting.wait()
    assert is_free(alone=True)


def test_a_timer_that_is_killed_while_it_waits_opens_the_turnstile(start):
    _, file = start("hold_shared")
    wait_for(file)
    gate = gpu._access_to(CPU).gate
    waiting, waits = start("hold_alone")
    wait_until(gate.exclusive_wanted)
    assert not waits.exists()
    waiting.kill()
    waiting.wait()
    assert is_free(alone=False), "with the other one that shares"
