"""Processes that share a stand-in for a GPU: timings are alone, and nobody waits for ever."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from program_server import Program

from sparsefront import gpu
from sparsefront.gpu import exclusive, shared

pytest.importorskip("fcntl", reason="locks of POSIX systems")
SCRIPT = Path(__file__).with_name("processes.py")
CPU = torch.device("cpu")


@pytest.fixture
def start(tmp_path, monkeypatch, programs):
    """start(what, seconds) -> the process and the file that it writes; this process uses the same stand-in."""
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    processes = []

    def make(what: str, seconds: float) -> tuple[Program, Path]:
        file = tmp_path / f"{len(processes)}.{what}"
        processes.append(programs.start([SCRIPT, what, file, seconds]))
        return processes[-1], file

    yield make
    for process in processes:
        process.kill()
        process.wait()


def wait_for(file: Path, seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < ends, f"{file.name} was never written"
        time.sleep(0.01)


def seconds_until_held(how) -> float:
    start = time.monotonic()
    with how(CPU):
        return time.monotonic() - start


def intervals(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def overlap(one: list[dict], other: list[dict]) -> float:
    """Seconds in which both worked."""
    return sum(max(0.0, min(a["end"], b["end"]) - max(a["start"], b["start"])) for a in one for b in other)


def test_trainings_share_and_timings_are_alone_and_come_in(start):
    trainers = [start("train", 4.0) for _ in range(2)]
    for _, file in trainers:
        wait_for(file)
    timers = [start("measure", 1.5) for _ in range(2)]
    for process, _ in [*trainers, *timers]:
        assert process.wait(60) == 0
    trained, timed = [intervals(file) for _, file in trainers], [intervals(file) for _, file in timers]
    assert all(len(one) >= 5 for one in timed) and all(len(one) >= 50 for one in trained)
    assert overlap(*trained) > 0.1, "trainings run side by side"
    assert overlap(*timed) == 0
    for timer in timed:
        for trainer in trained:
            assert overlap(timer, trainer) == 0
        waits = sorted(one["waited"] for one in timer)
        assert waits[len(waits) // 2] < 1.0, "a batch, and perhaps the other timing"
        assert waits[-1] < 3.0, "while two train all the time"


@pytest.mark.parametrize("how", ["hold_alone", "hold_shared"])
def test_a_killed_process_holds_nothing(start, how):
    process, file = start(how, 600)
    wait_for(file)
    waiting, waits = start("hold_alone", 600)
    time.sleep(0.5)
    assert not waits.exists()
    process.kill()
    process.wait()
    wait_for(waits)
    waiting.kill()
    waiting.wait()
    assert seconds_until_held(shared) < 30, "and not the 600 s"


def test_a_timer_that_is_killed_while_it_waits_opens_the_turnstile(start):
    _, file = start("hold_shared", 600)
    wait_for(file)
    gate = gpu._access_to(CPU).gate
    waiting, waits = start("hold_alone", 600)
    ends = time.monotonic() + 60
    while not gate.exclusive_wanted():
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert not waits.exists()
    waiting.kill()
    waiting.wait()
    assert seconds_until_held(shared) < 30, "with the other one that shares"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_hold_on_after_its_parent(start):
    process, file = start("fork_while_alone", 600)
    wait_for(file)
    child = int(file.read_text())
    try:
        process.kill()
        process.wait()
        assert seconds_until_held(exclusive) < 30, "and not the 600 s"
    finally:
        os.kill(child, signal.SIGKILL)
