"""Processes of a study end with it: at its end, when it fails, at SIGTERM, and when it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefront.processes import TERMINATED, worker_processes

PROGRAM = """
import os
import signal
import sys
import time
from pathlib import Path

from sparsefront.processes import worker_processes


def note_and_sleep(folder, number):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Lightning ends only the training
    (folder / f"begun.{number}").write_text(str(os.getpid()))
    (folder / f"begun.{number}").rename(folder / f"pid-{number}")
    time.sleep(600)


if __name__ == "__main__":
    with worker_processes(2) as pool:
        futures = [pool.submit(note_and_sleep, Path(sys.argv[1]), number) for number in range(3)]
        for future in futures:
            future.result()
"""


def test_what_was_submitted_is_finished_and_sigterm_is_as_before():
    before = signal.getsignal(signal.SIGTERM)
    with worker_processes(1) as pool:
        future = pool.submit(pow, 2, 10)
    assert future.result() == 1024 and signal.getsignal(signal.SIGTERM) is before


def test_several_have_one_thread_each_and_the_environment_is_as_before():
    before = dict(os.environ)
    with worker_processes(2) as pool:
        future = pool.submit(os.getenv, "OMP_NUM_THREADS")
    assert future.result() == "1" and dict(os.environ) == before


def test_a_block_that_fails_ends_its_processes():
    with pytest.raises(KeyError), worker_processes(1) as pool:
        future = pool.submit(time.sleep, 600)
        raise KeyError
    assert future.cancelled() or future.exception() is not None


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_sigterm_ends_the_program_and_its_processes(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, script, tmp_path]) as program:
        noted = _wait_for(lambda: sorted(tmp_path.glob("pid-*")), 2)
        program.send_signal(signal.SIGTERM)
        assert program.wait(600) == TERMINATED
    pids = [int(file.read_text()) for file in noted]
    _wait_for(lambda: [pid for pid in pids if not _lives(pid)], 2)
    assert len(list(tmp_path.glob("pid-*"))) == 2, "what had not begun does not begin"


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
@pytest.mark.parametrize("program", [PROGRAM, JOBLIB], ids=["a study", "joblib"])
def test_a_killed_program_leaves_no_process(tmp_path, program):
    script = tmp_path / "study.py"
    script.write_text(program)
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
