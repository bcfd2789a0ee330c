"""Processes end with a parent that is killed; garbage collection."""

import atexit
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefront.processes import freeze_imports


def _wait_for(find, count: int) -> list:
    return wait_until(lambda: len(found := find()) >= count and found)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


JOBLIB = """
import os, sys, time
from pathlib import Path
from hydra import compose, initialize_config_dir
from joblib import Parallel, delayed


def point(folder, number, conf):
    from hydra.core.hydra_config import HydraConfig
    import sparsefront.config.schema
    from sparsefront.config.command_line import job

    with initialize_config_dir(conf, version_base="1.3"):
        config = compose("config", overrides=[f"hydra.runtime.output_dir={folder}/{number}"], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    (folder / str(number)).mkdir()
    with job():
        (folder / f"begun.{number}").write_text(str(os.getpid()))
        (folder / f"begun.{number}").rename(folder / f"pid-{number}")
        time.sleep(600)


if __name__ == "__main__":
    Parallel(n_jobs=2, backend="loky")(delayed(point)(Path(sys.argv[1]), number, sys.argv[2]) for number in range(2))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_a_killed_program_leaves_no_process(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(JOBLIB)
    conf = Path(__file__).resolve().parents[1] / "conf"
    with subprocess.Popen([sys.executable, script, tmp_path, conf]) as started:
        noted = _wait_for(lambda: sorted(tmp_path.glob("pid-*")), 2)
        started.kill()
    pids = [int(file.read_text()) for file in noted]
    try:
        _wait_for(lambda: [pid for pid in pids if not _lives(pid)], 2)
    finally:
        for pid in filter(_lives, pids):
            os.kill(pid, signal.SIGKILL)


def test_imports_are_frozen_once(monkeypatch):
    """And thawed for the last collection: libraries print pages of leaks otherwise."""
    calls, at_exit = [], []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    freeze_imports.cache_clear()
    freeze_imports()
    freeze_imports()
    assert calls == [1] and at_exit == [gc.unfreeze]
