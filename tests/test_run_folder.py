"""A run's folder says whose it is while the run lasts, and why it has no result."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefront.artifacts import lease
from sparsefront.artifacts.lease import GONE_S, require_all
from sparsefront.results import run_folder
from sparsefront.results.run_folder import close_killed_runs, discard_if_empty, mark_in_use, record_failure

CHILD = """
import sys, time
from pathlib import Path
from sparsefront.results.run_folder import mark_in_use
with mark_in_use(Path(sys.argv[1])):
    time.sleep(600)
"""


def begin(folder, log: str = ""):
    """What Hydra and a run make first."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("- sparsity=0.5\n")
    (folder / "run.log").write_text(log)
    return folder


@pytest.fixture
def killed(tmp_path):
    """A function that lets a process work in folders, and kills it; also one that lives on."""
    processes = []

    def occupy(folder) -> subprocess.Popen:
        processes.append(subprocess.Popen([sys.executable, "-c", CHILD, str(folder)]))
        wait_until(lambda: list(folder.glob(".running/*")), processes[-1])
        return processes[-1]

    yield occupy
    for process in processes:
        process.kill()
        process.wait(600)


def test_killed_run_is_closed(tmp_path, killed):
    names = {"dead": "dense: training", "alive": "dense: training", "2026/dead point": "dense", "nothing": ""}
    folders = {name: begin(tmp_path / name, log) for name, log in names.items()}
    finished = begin(tmp_path / "finished", "all")
    (finished / "row.json").write_text("{}")
    processes = {name: killed(folder) for name, folder in [*folders.items(), ("finished", finished)]}
    for folder in folders.values():
        (folder / ".partial-1-report.html").write_text("<html>")
    for name, process in processes.items():
        if name != "alive":
            os.kill(process.pid, signal.SIGKILL)
            process.wait(600)
    close_killed_runs(tmp_path)
    for name in ("dead", "2026/dead point"):
        left = {path.name for path in folders[name].iterdir()}
        assert left == {".hydra", "run.log", "failure.json"}
        assert json.loads((folders[name] / "failure.json").read_text())["error"] == "Killed"
    assert not folders["nothing"].exists(), "it had done nothing yet"
    assert {path.name for path in finished.iterdir()} == {".hydra", "run.log", "row.json"}
    assert (folders["alive"] / ".running").exists() and (folders["alive"] / ".partial-1-report.html").exists()


def test_discarded_run_stays_away(tmp_path, monkeypatch):
    folder = begin(tmp_path / "results" / "run")
    (folder / ".running").mkdir()
    hold = run_folder.hold_in

    def late(marker, *arguments, **settings):
        discard_if_empty(folder, log_counts=True)
        return hold(marker, *arguments, **settings)

    monkeypatch.setattr(run_folder, "hold_in", late)
    close_killed_runs(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def sleep(folder: Path, seconds: float) -> None:
    """As if the last sign of life of the run in a folder was so long ago."""
    (file,) = folder.glob(".running/*")
    os.utime(file, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("log", ["", "dense: training"], ids=["discarded", "closed"])
def test_waking_run_has_its_folder(tmp_path, monkeypatch, log):
    folder = begin(tmp_path / "results" / "run", log)
    monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
    with mark_in_use(folder):
        monkeypatch.undo()
        sleep(folder, GONE_S + 60)
        close_killed_runs(tmp_path / "results")
        assert folder.exists() == bool(log) and (folder / "failure.json").exists() == bool(log)
        monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
        require_all()
        monkeypatch.undo()
        close_killed_runs(tmp_path / "results")
        (folder / "row.json").write_text("{}")
    assert not (folder / "failure.json").exists() and not (folder / ".running").exists()


def test_empty_folder_is_discarded(tmp_path):
    rejected = begin(tmp_path / "results" / "rejected", "granularity is ignored\n")
    assert not discard_if_empty(rejected, log_counts=True)
    record_failure(rejected, ValueError("wrong"))
    assert discard_if_empty(rejected, log_counts=False)
    assert not (tmp_path / "results").exists(), "nor the folder of results that was made for it"
    curves = begin(tmp_path / "results" / "failed")
    (curves / "wandb").mkdir()
    assert not discard_if_empty(curves, log_counts=False)


def test_full_disk_hides_no_error(tmp_path, monkeypatch):
    folder = begin(tmp_path / "run")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder.Path, "write_text", full)
    record_failure(folder, ValueError("the first"))
    monkeypatch.undo()
    assert {path.name for path in folder.iterdir()} == {".hydra", "run.log"}
