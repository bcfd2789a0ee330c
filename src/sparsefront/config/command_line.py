"""The command line around a job: bad input ends in one message, failures are recorded, a sweep ends with a table."""

import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, ValueType
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts.durable import denied, full_disk
from sparsefront.artifacts.lease import LeaseLost
from sparsefront.config.arguments import GROUPS, normalize_arguments
from sparsefront.config.declared import check_declared
from sparsefront.config.settings import check_root_types, check_types, options_of, searched_folders
from sparsefront.config.sweeps import begin_sweep, check_values, count_points, point_check, point_of_sweep
from sparsefront.errors import (
    InvalidSetting,
    Obstacle,
    PassingObstacle,
    first_line,
    printable,
)
from sparsefront.options import missing_package
from sparsefront.processes import end_with_parent
from sparsefront.progress import ignore_output_errors
from sparsefront.results.run_folder import discard_if_empty, make_writable, occupied, record_failure

# What stops a run from outside of it (a full disk, a missing package, too little memory), told in one line.

# environment variable that moves what libraries and kernels keep on a disk -> where it lies without it; "": in TMPDIR
CACHES = {
    "SPARSEFRONT_GPU_LOCKS": "",
    "SPARSEFRONT_KERNELS_CACHE": "~/.cache/sparsefront_kernels",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "HF_DATASETS_CACHE": "",
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "WANDB_CACHE_DIR": "~/.cache/wandb",
}


@contextmanager
def report_errors_briefly(config: DictConfig, output_dir: Path) -> Iterator[None]:
    """Failures that a user can fix leave as `InvalidSetting`; the rest pass with their stack trace, as it is our fault.

    Args:
        config: of the run.
        output_dir: where its results go.
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
    if (full := full_disk(error, _written_folders(config, output_dir))) is not None:
        return PassingObstacle(full.key, full.value, full.allowed)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if isinstance(error, PermissionError) and error.filename is not None:
        return denied(error, otherwise="name another cache_dir or results_dir")
    if type(error).__name__ == "OutOfMemoryError":  # torch's; its name alone, so that no import is needed
        remedy = "lower recipe.batch_size (trainer.accumulate_grad_batches makes up for it) or measure.batch_size"
        return Obstacle("memory of the GPU", None, f"{str(error).partition('. ')[0]}: {remedy}")
    return _of_a_loader(error)


def _written_folders(config: DictConfig, output_dir: Path) -> dict[Path, str]:
    """Every folder that a run may write to, W&B's lie in its own -> the setting or environment variable that names another."""
    found = {Path(config.cache_dir): "cache_dir", output_dir: "results_dir", Path(config.results_dir): "results_dir"}
    found.setdefault(Path(tempfile.gettempdir()), "TMPDIR")
    for variable, default in CACHES.items():
        folder = os.path.expanduser(os.environ.get(variable) or default)
        if os.path.isdir(folder):
            found.setdefault(Path(folder), variable)
    absolute: dict[Path, str] = {}
    for folder, setting in found.items():
        absolute.setdefault(folder.absolute(), setting)
    return absolute


def _of_a_loader(error: Exception) -> InvalidSetting | None:
    """A worker process of a data loader hands its complaint over as text, at the end of its own stack trace."""
    if not str(error).startswith("Caught InvalidSetting in DataLoader worker"):
        return None
    found = re.search(r"\.InvalidSetting: ([\w.]+)=(.*?): (.*)", str(error))
    return found and InvalidSetting(*found.groups())


# What a sweep asks for that Hydra would answer with a stack trace, or with nothing at all; looked at before the first
# point.

OPTUNA_ONLY = "needs hydra/sweeper=optuna (extra `sweep`); a plain sweep takes a,b or range(START,STOP,STEP)"


def check_sweep(config: DictConfig) -> None:
    """Require values for each key that is swept over, of a kind that the sweeper takes, and processes to run the points.

    Args:
        config: of the multirun, Hydra's own part included.
    Raises:
        InvalidSetting: the first key that would end the sweep, or leave it without a point.
    """
    for part in ("launcher", "sweeper"):
        if OmegaConf.select(config, f"hydra.{part}.n_jobs") == 0:
            raise InvalidSetting(f"hydra.{part}.n_jobs", 0, "takes 1 or more, or -1 for one per core")
    if not str(config.hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        return
    folders = searched_folders(config.hydra.runtime.get("config_sources") or ())
    for override in _swept(config):
        key, value = override.get_key_element(), str(override.input_line).partition("=")[2]
        if not override.is_discrete_sweep():
            raise InvalidSetting(key, value, OPTUNA_ONLY)
        _require_values(override, key, value, folders)


def overrides_of_sweep(config: DictConfig) -> list[str]:
    """Those of the sweeper's configuration, where it holds any by key, and those that were typed."""
    params = config.hydra.sweeper.get("params")
    given = [f"{key}={value}" for key, value in params.items()] if OmegaConf.is_dict(params) else []
    return [*given, *config.hydra.overrides.task]


def _swept(config: DictConfig) -> Iterator[Override]:
    for override in OverridesParser.create().parse_overrides(overrides_of_sweep(config)):
        if override.is_sweep_override():
            yield override


def _require_values(override: Override, key: str, value: str, folders: Sequence[Path]) -> None:
    pattern: Any = override.value()
    if override.value_type is not ValueType.GLOB_CHOICE_SWEEP or not isinstance(pattern, Glob):
        if not any(True for _ in override.sweep_string_iterator()):
            raise InvalidSetting(key, value, "is no value at all, so that the sweep has no points")
        return
    if key in GROUPS and not pattern.filter(options := options_of(key, folders)):
        raise InvalidSetting(key, value, f"finds no option of the group; there are {', '.join(options)}")


# What surrounds a job on the command line: one message for bad input or Ctrl-C, a record of each failure, a table
# after a sweep.

# The presets of conf/hydra/launcher are called as the plugins' own options are, on purpose: `hydra/launcher=ray` stays what it
# is, and is checked by the plugin's schema. The message begins with a line end.
SAME_NAME = r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema with the same name"
warnings.filterwarnings("ignore", message=SAME_NAME)


class BadInput(CompactHydraException):
    """Bad input: its message is printed alone, without a stack trace unless HYDRA_FULL_ERROR=1.

    `passing`: as of the `InvalidSetting`. As an attribute it comes back from the processes of launchers, as the cause does not.
    """

    passing = False

    def exit(self) -> "SystemExit | BadInput":
        """What ends the program. Hydra adds to every exception how to get a stack trace, which is no help here; an exit it lets
        through.
        """
        if os.environ.get(FULL_ERROR) == "1":
            return self
        ended = _Exit(str(self))
        ended.passing = self.passing
        return ended


class _Exit(SystemExit):
    """`passing`: as of the `BadInput` that it stands for."""

    passing = False


def normalize_or_exit(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them (`normalize_arguments`); bad input ends the program with its message alone."""
    try:
        return normalize_arguments(arguments)
    except InvalidSetting as error:
        raise SystemExit(str(error)) from error


FULL_ERROR = "HYDRA_FULL_ERROR"  # where this is 1 Hydra raises an error instead of printing it


@contextmanager
def report_composition_briefly() -> Iterator[None]:
    """What Hydra cannot compose ends the program with one line; Hydra itself would print several, and its advice."""
    if os.environ.get(FULL_ERROR) == "1":
        yield
        return
    os.environ[FULL_ERROR] = "1"
    Sweep.composing = True
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        if not Sweep.composing:
            raise
        raise SystemExit(printable(_composition_complaint(error))) from error
    finally:
        _composed()


def _composed() -> None:
    """From here on errors are of the run."""
    if Sweep.composing:
        Sweep.composing = False
        del os.environ[FULL_ERROR]


def _composition_complaint(error: Exception) -> str:
    """The lines of Hydra's message as one; of an option that there is not, its group's options."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = text.partition("; Config search path:")[0].partition("; See https://")[0]
    text = text.replace(".; ", "; ")
    text = re.sub(r"(Available options in '[^']*':); ", r"\1 ", text)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text = f"{text}: {first_line(error.__cause__)}"
    return text


@contextmanager
def report_interrupt_briefly() -> Iterator[None]:
    """Ctrl-C ends the program with a line and status 130, as shells tell it; Python would print where it was."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: what is finished is stored, and the same command resumes from there", file=sys.stderr)
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
        with ignore_output_errors(), occupied(directory), _counted():
            yield directory
    except BaseException as error:
        rejected = isinstance(error, InvalidSetting)
        if not isinstance(
            error.__cause__ or error, LeaseLost
        ):  # the folder is that of the process that followed this one
            record_failure(directory, error)
            if HydraConfig.get().mode is not RunMode.MULTIRUN:  # a sweep tells of each point at its end
                discard_if_empty(directory, log_counts=not rejected)
        if isinstance(error, InvalidSetting):
            bad_input = BadInput(str(error))
            bad_input.passing = error.passing
            raise bad_input from error
        raise


def _in_a_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def check_groups(config: DictConfig) -> None:
    """Every value of a group by the type that its option declares, before torch is imported: see `config.declared`."""
    runtime = HydraConfig.get().runtime
    check_declared(config, dict(runtime.choices), searched_folders(runtime.config_sources))


class Sweep(Callback):
    """Hydra callback: rejects a results folder that cannot be written, remembers where a sweep writes its points, and ends a
    run of bad input with its message alone.
    """

    directory: Path | None = None
    single_run: Path | None = None
    composing = False

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        _composed()
        Sweep.single_run = _made(config.results_dir, Path(config.hydra.run.dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Hydra raises what a job returns as its failure, in a sweep when all points are done."""
        if job_return.status is not JobStatus.FAILED or not isinstance(job_return._return_value, BadInput):
            return
        job_return.return_value = ended = job_return._return_value.exit()
        if isinstance(ended, SystemExit) and not _in_a_sweep():
            raise ended  # here, before Hydra prints all overrides above the message

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        _composed()
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
        for check in (_check_declared_point, check_types):  # the quick one first
            check_values(overrides_of_sweep(config), point_check(config, loader, check), loader)


def _check_declared_point(config: DictConfig, choices: dict[str, str], folders: Sequence[Path]) -> None:
    check_root_types(config)
    check_declared(config, choices, folders)


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
    from sparsefront.results.tables import print_sweep

    try:
        if any(path.is_dir() for path in directory.iterdir()):
            print_sweep(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # results of other runs are in there
                directory.parent.rmdir()
    except Exception as error:
        print(f"no table of {directory}: {type(error).__name__}: {error}", file=sys.stderr)
