"""What surrounds a job on the command line: one-line errors, failure records, and a table after a sweep."""

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts.durable import explain_denial, full_disk
from sparsefront.artifacts.lease import LeaseLost
from sparsefront.config.arguments import GROUPS
from sparsefront.config.settings import list_config_folders, options_of
from sparsefront.config.sweeps import (
    NOT_COMPOSED,
    PROGRESS_FILE,
    PointLoader,
    begin_sweep,
    check_values,
    composition_complaint,
    count_points,
    overrides_of_sweep,
    point_check,
    point_of_sweep,
)
from sparsefront.errors import InvalidSetting, Obstacle, PassingObstacle, Terminated, first_line, printable
from sparsefront.interrupts import interruptible
from sparsefront.options import missing_package
from sparsefront.processes import end_with_parent
from sparsefront.progress import ignore_output_errors
from sparsefront.results.run_folder import discard_if_empty, make_writable, mark_in_use, record_failure

# External failures (a full disk, a missing package, too little memory), reported in one line.


@contextmanager
def report_errors_briefly(config: DictConfig, output_dir: Path) -> Iterator[None]:
    """Context that turns failures a user can fix into `InvalidSetting`; others keep their stack trace, as bugs.

    Args:
        config: of the run.
        output_dir: of its results.
    """
    try:
        yield
    except InvalidSetting:
        raise
    except Exception as error:
        complaint = _complaint(error, config, output_dir)
        if complaint is None:
            raise
        raise complaint from error


def _complaint(error: Exception, config: DictConfig, output_dir: Path) -> InvalidSetting | None:
    if isinstance(error, OmegaConfBaseException):
        return Obstacle(error.full_key or "configuration", None, first_line(error))
    if isinstance(error, LeaseLost):
        return PassingObstacle("this run", None, f"{error}; the same command shows what that one finished")
    folders = {tempfile.gettempdir(): "TMPDIR", config.results_dir: "results_dir", config.cache_dir: "cache_dir"}
    folders |= {output_dir: "results_dir"}
    full = full_disk(error, {Path(folder).absolute(): setting for folder, setting in folders.items()})
    if full is not None:
        return PassingObstacle(full.key, full.value, full.allowed)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if isinstance(error, PermissionError) and error.filename is not None:
        return explain_denial(error, otherwise="name another cache_dir or results_dir")
    if type(error).__name__ == "OutOfMemoryError":  # torch's, by name to avoid the import
        remedy = "lower recipe.batch_size (trainer.accumulate_grad_batches makes up for it) or measure.batch_size"
        return Obstacle("memory of the GPU", None, f"{str(error).partition('. ')[0]}: {remedy}")
    return _of_a_loader(error)


def _of_a_loader(error: Exception) -> InvalidSetting | None:
    """Unwrap an InvalidSetting from a loader's worker process, which arrives as text at the end of a stack trace."""
    if not str(error).startswith("Caught InvalidSetting in DataLoader worker"):
        return None
    setting_match = re.search(r"\.InvalidSetting: ([\w.]+)=(.*?): (.*)", str(error))
    return setting_match and InvalidSetting(*setting_match.groups())


# Checks of a sweep before its first point: requests for which Hydra would print a stack trace, or nothing.

OPTUNA_ONLY = "needs hydra/sweeper=optuna (extra `sweep`); a plain sweep takes a,b or range(START,STOP,STEP)"


def check_sweep(config: DictConfig) -> None:
    """Check that each swept key has values that the sweeper supports, and that processes can run the points.

    Args:
        config: of the multirun, including Hydra's part.
    Raises:
        InvalidSetting: the first key that would end the sweep, or leave it without points.
    """
    for part in ("launcher", "sweeper"):
        if OmegaConf.select(config, f"hydra.{part}.n_jobs") == 0:
            raise InvalidSetting(f"hydra.{part}.n_jobs", 0, "takes 1 or more, or -1 for one per core")
    if not str(config.hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        return
    folders = list_config_folders(config.hydra.runtime.get("config_sources") or ())
    for override in OverridesParser.create().parse_overrides(overrides_of_sweep(config)):
        if not override.is_sweep_override():
            continue
        key, value, swept = override.get_key_element(), str(override.input_line).partition("=")[2], override.value()
        if not override.is_discrete_sweep():
            raise InvalidSetting(key, value, OPTUNA_ONLY)
        if isinstance(swept, Glob):
            if key in GROUPS and not swept.filter(options := options_of(key, folders)):
                raise InvalidSetting(key, value, f"finds no option of the group; there are {', '.join(options)}")
        elif not any(True for _ in override.sweep_string_iterator()):
            raise InvalidSetting(key, value, "is no value at all, so that the sweep has no points")


# What surrounds a job: one message for bad input or Ctrl-C, a record of each failure, a table after a sweep.

# The presets of conf/hydra/launcher intentionally have the names of the plugins' own options: `hydra/launcher=ray` keeps
# its meaning and is validated by the plugin's schema. The message begins with a newline.
SAME_NAME = r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema with the same name"
warnings.filterwarnings("ignore", message=SAME_NAME)


class BadInput(CompactHydraException):
    """Bad input: only its message is printed, without a stack trace unless HYDRA_FULL_ERROR=1.

    `passing`: copied from the `InvalidSetting`. An attribute survives the return from launcher processes, unlike the cause.
    """

    passing = False

    def exit(self) -> "SystemExit | BadInput":
        """The exception that ends the program. Hydra appends advice about stack traces to every exception except SystemExit."""
        if os.environ.get(FULL_ERROR) == "1":
            return self
        ended = _Exit(str(self))
        ended.passing = self.passing
        return ended


class _Exit(SystemExit):
    """`passing`: copied from its `BadInput`."""

    passing = False


@contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Context in which bad input ends the program with its message alone; Hydra turns other errors of callbacks into warnings."""
    try:
        yield
    except InvalidSetting as error:
        raise SystemExit(str(error)) from error


FULL_ERROR = "HYDRA_FULL_ERROR"  # if 1, Hydra raises errors instead of printing them


@contextmanager
def report_composition_briefly() -> Iterator[None]:
    """Context in which composition errors end the program with one line, instead of Hydra's several lines and advice."""
    if os.environ.get(FULL_ERROR) == "1":
        yield
        return
    os.environ[FULL_ERROR] = "1"
    Sweep.composing = True
    try:
        yield
    except NOT_COMPOSED as error:
        if not Sweep.composing:
            raise
        raise SystemExit(printable(composition_complaint(error))) from error
    finally:
        _end_composition()


def _end_composition() -> None:
    """Marks the end of composition: later errors are from the run."""
    if Sweep.composing:
        Sweep.composing = False
        del os.environ[FULL_ERROR]


RESUMES = "what is finished is stored, and the same command resumes from there"


@contextmanager
def report_interrupt_briefly() -> Iterator[None]:
    """Context in which Ctrl-C ends the program with one line and status 130, and SIGTERM in a training with 143, as in shells."""
    with interruptible(f"interrupted: {RESUMES}"):
        try:
            yield
        except Terminated as end:
            print(f"{end}: {RESUMES}", file=sys.stderr)
            raise SystemExit(end.code) from None


@contextmanager
def job() -> Iterator[Path]:
    """Context of one job: a failure is recorded in the job's output directory, then raised, so that a sweep can continue.

    Yields that directory. A single run that was rejected, or failed before doing anything, leaves no folder.

    Raises:
        BadInput: for an `InvalidSetting`, with its message.
    """
    hydra = HydraConfig.get()
    directory = Path(hydra.runtime.output_dir)
    _let_waiting_threads_sleep()
    if type(multiprocessing.current_process()).__module__.startswith("joblib."):
        end_with_parent()  # after a kill it would work on for nobody; results of Ray's and Slurm's workers go to the store
    swept = hydra.mode is RunMode.MULTIRUN
    try:
        counted = point_of_sweep(Path(hydra.sweep.dir), hydra.job.num) if swept else nullcontext()
        with ignore_output_errors(), mark_in_use(directory), counted:
            yield directory
    except BaseException as error:
        if not isinstance(
            error.__cause__ or error, LeaseLost
        ):  # else the folder is of the process that replaced this one
            record_failure(directory, error)
            _discard_run(directory, log_counts=not isinstance(error, InvalidSetting))
        if isinstance(error, InvalidSetting):
            bad_input = BadInput(str(error))
            bad_input.passing = error.passing
            raise bad_input from error
        raise


def _discard_run(folder: Path, *, log_counts: bool) -> None:
    """Remove the folder of a single run without a result; a sweep lists its points at its end."""
    if folder.is_dir() and not (folder.parent / PROGRESS_FILE).exists():
        discard_if_empty(folder, log_counts=log_counts)


class Sweep(Callback):
    """Hydra callback: rejects an unwritable results folder, records where a sweep writes its points, and ends a run with bad
    input with only its message.
    """

    directory: Path | None = None
    single_run: Path | None = None
    composing = False
    loader: PointLoader | None = None

    def on_job_start(self, **_: Any) -> None:
        if Sweep.loader is not None:
            Sweep.loader.began = True

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        _end_composition()
        with exit_on_bad_input():
            make_writable(config.results_dir, Path(config.hydra.run.dir))
        Sweep.single_run = Path(config.hydra.run.dir)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Raise a job's failure; Hydra would raise it only after all points of a sweep."""
        if job_return.status is not JobStatus.FAILED or not isinstance(job_return._return_value, BadInput):
            return
        job_return.return_value = ended = job_return._return_value.exit()
        swept = HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN
        if isinstance(ended, SystemExit) and not swept:
            raise ended  # here, before Hydra prints all overrides above the message

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        _end_composition()
        with exit_on_bad_input():
            check_sweep(config)
            points = count_points(config)
            if points is not None and points > 1:
                print(f"checking a sweep of {points} points", flush=True)
            Sweep.loader = PointLoader(GlobalHydra.instance().config_loader(), points)
            GlobalHydra.instance().config_loader().load_sweep_config = Sweep.loader
            _check_values(config)
            make_writable(config.results_dir, Path(config.hydra.sweep.dir))
        Sweep.directory = Path(config.hydra.sweep.dir)
        begin_sweep(Sweep.directory, points)


@contextmanager
def sweep_summary() -> Iterator[None]:
    """Context that prints, after any sweep, which points finished with which results, and which failed and why.

    If Hydra itself fails, for example because the disk is full, the run leaves no folder.
    """
    try:
        yield
    finally:
        if Sweep.single_run is not None:
            _discard_run(Sweep.single_run, log_counts=True)
        if Sweep.directory is not None and Sweep.directory.is_dir():
            _close_sweep(Sweep.directory)


def _check_values(config: DictConfig) -> None:
    """Check each value of a sweep whose points are overrides; other sweepers have their own formats."""
    if str(config.hydra.sweeper.get("_target_")).endswith((".BasicSweeper", ".OptunaSweeper")):
        _let_waiting_threads_sleep()
        loader = GlobalHydra.instance().config_loader()
        check_values(overrides_of_sweep(config), point_check(config, loader), loader)


def compose_point(config: DictConfig, loader: ConfigLoader, overrides: Sequence[str]) -> DictConfig:
    """Compose a point of a sweep and check the type of each value.

    Args:
        config: of the multirun, including Hydra's part.
        loader: Hydra's, or a `PointLoader`.
    Raises:
        InvalidSetting: a wrong value, or overrides that cannot be composed.
    """
    point_check(config, loader)(overrides)
    return loader.load_sweep_config(config, list(overrides))


def _let_waiting_threads_sleep() -> None:
    """Set variables that OpenMP reads when torch is imported. Spinning threads slow down runs that share cores, such as points
    of a sweep, many times.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _close_sweep(directory: Path) -> None:
    """Print the tables of a sweep; remove its folder if no point began. Errors are reported elsewhere."""
    from sparsefront.results.tables import print_sweep

    try:
        if any(path.is_dir() for path in directory.iterdir()):
            print_sweep(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # not empty
                directory.parent.rmdir()
    except Exception as error:
        print(f"no table of {directory}: {type(error).__name__}: {error}", file=sys.stderr)
