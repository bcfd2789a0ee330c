"""What surrounds a job on the command line: one message for bad input or Ctrl-C, a record of each failure, a table after a
sweep.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from sparsefront.arguments import understood
from sparsefront.artifacts.lease import LeaseLost
from sparsefront.errors import InvalidSetting, PassingObstacle
from sparsefront.run_folder import discard_if_empty, make_writable, occupied, record_failure
from sparsefront.sweep_checks import check_sweep, overrides_of_sweep
from sparsefront.sweep_progress import begin_sweep, count_points, point_of_sweep
from sparsefront.sweep_values import check_values, point_check
from sparsefront.worker_processes import end_with_parent

# The presets of conf/hydra/launcher are called as the plugins' own options are, on purpose: `hydra/launcher=ray` stays what it
# is, and is checked by the plugin's schema. The message begins with a line end.
SAME_NAME = r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema with the same name"
warnings.filterwarnings("ignore", message=SAME_NAME)


class BadInput(CompactHydraException):
    """Bad input: its message is printed alone, without a stack trace unless HYDRA_FULL_ERROR=1.

    `passing`: of a `PassingObstacle`. As an attribute it comes back from the processes of launchers, as the cause does not.
    """

    passing = False

    def exit(self) -> "SystemExit | BadInput":
        """What ends the program. Hydra adds to every exception how to get a stack trace, which is no help here; an exit it lets
        through.
        """
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            return self
        ended = _Exit(str(self))
        ended.passing = self.passing
        return ended


class _Exit(SystemExit):
    """`passing`: as of the `BadInput` that it stands for."""

    passing = False


def understood_or_exit(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them (`arguments.understood`); bad input ends the program with its message alone."""
    try:
        return understood(arguments)
    except InvalidSetting as error:
        raise SystemExit(str(error)) from error


@contextmanager
def interrupt_in_one_line() -> Iterator[None]:
    """Ctrl-C ends the program with a line and status 130, as shells tell it; Python would print where it was."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: what is finished is stored, and the same command goes on from there", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


@contextmanager
def job() -> Iterator[Path]:
    """Runs one job: a failure is recorded in the job's output directory, then raised, so that a sweep can go on without it.

    Gives that directory.
    A single run that was refused, or failed before it did anything, leaves no folder.

    Raises:
        BadInput: for an `InvalidSetting`, with its message.
    """
    directory = Path(HydraConfig.get().runtime.output_dir)
    _let_waiting_threads_sleep()
    _end_with_joblib()
    try:
        with occupied(directory), _counted():
            yield directory
    except BaseException as error:
        rejected = isinstance(error, InvalidSetting)
        if not isinstance(
            error.__cause__ or error, LeaseLost
        ):  # the folder is that of the process that followed this one
            record_failure(directory, error)
            if HydraConfig.get().mode is not RunMode.MULTIRUN:  # a sweep tells of each point at its end
                discard_if_empty(directory, log_counts=not rejected)
        if rejected:
            bad_input = BadInput(str(error))
            bad_input.passing = isinstance(error, PassingObstacle)
            raise bad_input from error
        raise


class Sweep(Callback):
    """Hydra callback: rejects a results folder that cannot be written, remembers where a sweep writes its points, and ends a
    run of bad input with its message alone.
    """

    directory: Path | None = None
    single_run: Path | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        Sweep.single_run = _made(config.results_dir, Path(config.hydra.run.dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Hydra raises what a job returns as its failure, in a sweep when all points are done."""
        if job_return.status is JobStatus.FAILED and isinstance(job_return._return_value, BadInput):
            job_return.return_value = job_return._return_value.exit()

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            check_sweep(config)
            _check_values(config)
        except InvalidSetting as error:
            raise SystemExit(str(error)) from error
        Sweep.directory = _made(config.results_dir, Path(config.hydra.sweep.dir))
        begin_sweep(Sweep.directory, count_points(config))


@contextmanager
def sweep_summary() -> Iterator[None]:
    """After a sweep, also a failed one, prints which points finished with what, and which failed and why.

    Where Hydra itself fails, for instance because the disk is full, the run leaves no folder.
    """
    try:
        yield
    finally:
        if Sweep.single_run is not None and Sweep.single_run.is_dir():
            discard_if_empty(Sweep.single_run, log_counts=True)
        if Sweep.directory is not None and Sweep.directory.is_dir():
            _close_sweep(Sweep.directory)


def _check_values(config: DictConfig) -> None:
    """Each value of a sweep whose points are written as overrides; other sweepers have ways of their own to write them."""
    if str(config.hydra.sweeper.get("_target_")).endswith((".BasicSweeper", ".OptunaSweeper")):
        _let_waiting_threads_sleep()
        loader = GlobalHydra.instance().config_loader()
        check_values(overrides_of_sweep(config), point_check(config, loader), loader)


def _let_waiting_threads_sleep() -> None:
    """Read by OpenMP when torch is first imported. Threads that spin while they wait make runs that share cores, such as the
    points of a sweep, many times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _end_with_joblib() -> None:
    """A worker of joblib ends with the sweep that started it: a killed one would leave it at work with nobody to hand it to.
    Those of Ray and of Slurm run on, since their results are in the store.
    """
    if type(multiprocessing.current_process()).__module__.startswith("joblib."):
        end_with_parent()


def _made(results_dir: str, folder: Path) -> Path:
    """The folder, made. Where it cannot be, the program ends with one line: Hydra itself would fail with a stack trace."""
    try:
        make_writable(results_dir, folder)
    except InvalidSetting as error:
        # Hydra turns an exception of a callback into a warning, but lets an exit through.
        raise SystemExit(str(error)) from error
    return folder


def _counted() -> AbstractContextManager:
    """A point of a sweep tells how far the sweep is."""
    hydra = HydraConfig.get()
    if hydra.mode is not RunMode.MULTIRUN:
        return nullcontext()
    return point_of_sweep(Path(hydra.sweep.dir), hydra.job.num)


def _close_sweep(directory: Path) -> None:
    """The tables of a sweep; a sweep that began no point leaves no folder. Whatever ended it is named by its own error."""
    from sparsefront.report.sweep_table import print_sweep

    try:
        if any(path.is_dir() for path in directory.iterdir()):
            print_sweep(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # results of other runs are in there
                directory.parent.rmdir()
    except Exception as error:
        print(f"no table of {directory}: {type(error).__name__}: {error}", file=sys.stderr)
