"""What surrounds a job on the command line: one message for bad input, a record of each failure, a table after a sweep."""

import errno
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import YAMLError

from sparsefront.artifacts.disk_space import free_bytes, in_units
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.run_folder import FAILURE_FILE, discard_if_empty, occupied, record_failure
from sparsefront.sweep_progress import begin_sweep, count_points, point_of_sweep

# The presets of conf/hydra/launcher are called as the plugins' own options are, on purpose: `hydra/launcher=ray` stays what it
# is, and is checked by the plugin's schema. The message begins with a line end.
SAME_NAME = r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema with the same name"
warnings.filterwarnings("ignore", message=SAME_NAME)
LEAST_FREE_BYTES = 2**18  # for Hydra's files, the log and a result; without them Hydra fails with a stack trace


class BadInput(CompactHydraException):
    """Bad input: its message is printed alone, without a stack trace unless HYDRA_FULL_ERROR=1."""

    def exit(self) -> "SystemExit | BadInput":
        """What ends the program. Hydra adds to every exception how to get a stack trace, which is no help here; an exit it lets
        through.
        """
        return self if os.environ.get("HYDRA_FULL_ERROR") == "1" else SystemExit(str(self))


@contextmanager
def job() -> Iterator[Path]:
    """Runs one job: a failure is recorded in the job's output directory, then raised, so that a sweep can go on without it.

    Gives that directory.
    A single run that was refused, or failed before it did anything, leaves no folder.

    Raises:
        BadInput: for an `InvalidSetting`, with its message.
    """
    directory = Path(HydraConfig.get().runtime.output_dir)
    # Read by OpenMP when torch is first imported. Threads that spin while they wait make runs that share cores, such as the
    # points of a sweep, many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with occupied(directory), _counted():
            yield directory
    except BaseException as error:
        record_failure(directory, error)
        rejected = isinstance(error, InvalidSetting)
        if HydraConfig.get().mode is not RunMode.MULTIRUN:  # a sweep tells of each point at its end
            discard_if_empty(directory, log_counts=not rejected)
        if rejected:
            raise BadInput(str(error)) from error
        raise


def run_overrides(overrides: Sequence[str], config_dir: Path) -> Path:
    """One run from Python, as `python run.py OVERRIDES` does it, but for its log file.

    Args:
        config_dir: the folder of the configuration, conf/ of the repository.
    Returns:
        the run's folder.
    Raises:
        InvalidSetting: a configuration that cannot be composed, or that cannot work.
    """
    from sparsefront.failures import in_one_line
    from sparsefront.pipeline import run_experiment

    with configured(overrides, config_dir) as (config, directory):
        (directory / ".hydra").mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, directory / ".hydra" / "config.yaml")
        OmegaConf.save(list(overrides), directory / ".hydra" / "overrides.yaml")
        try:
            with job(), in_one_line(config, directory):
                run_experiment(config)
        except BadInput as error:
            raise error.__cause__ or error from None
    return directory


@contextmanager
def configured(overrides: Sequence[str], config_dir: Path) -> Iterator[tuple[DictConfig, Path]]:
    """A composed configuration of one run, while Hydra's own settings are those of this run.

    Gives it with the folder that the run would write to, which is not made.

    Raises:
        InvalidSetting: a configuration that cannot be composed.
    """
    import sparsefront.config  # noqa: F401  (registers the schema and the resolvers)

    hydra, before = HydraConfig.instance(), HydraConfig.instance().cfg
    config = _composed(overrides, config_dir)
    try:
        directory = Path(config.hydra.run.dir).absolute()
        with open_dict(config):
            config.hydra.runtime.output_dir = str(directory)
            hydra.set_config(config)
            del config["hydra"]
        yield config, directory
    finally:
        hydra.cfg = before


def _composed(overrides: Sequence[str], config_dir: Path) -> DictConfig:
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3", job_name="run"):
            return compose("config", overrides=list(overrides), return_hydra_config=True)
    except HydraException as error:
        said = f"{error} ({first_line(error.__cause__)})" if error.__cause__ else str(error)
        raise InvalidSetting("overrides", " ".join(overrides), " ".join(said.split())) from error


class Sweep(Callback):
    """Hydra callback: rejects a results folder that cannot be written, remembers where a sweep writes its points, and ends a
    run of bad input with its message alone.
    """

    directory: Path | None = None
    single_run: Path | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        _require_named(config.results_dir)
        Sweep.single_run = Path(config.hydra.run.dir)
        _require_writable(Sweep.single_run)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Hydra raises what a job returns as its failure, in a sweep when all points are done."""
        if job_return.status is JobStatus.FAILED and isinstance(job_return._return_value, BadInput):
            job_return.return_value = job_return._return_value.exit()

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        _require_named(config.results_dir)
        Sweep.directory = Path(config.hydra.sweep.dir)
        _require_writable(Sweep.directory)
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


def print_sweep(directory: Path) -> None:
    """Tables of a sweep's finished and failed points.

    Args:
        directory: the sweep's folder, one subfolder per point.
    """
    from sparsefront.report.store import read_results
    from sparsefront.report.table import results_table, table_console
    from sparsefront.report.terminal import Failure, print_failures

    reading = read_results([directory])
    failures = []
    for file in sorted(directory.glob(f"*/{FAILURE_FILE}")):
        failures.append(Failure(file.parent.name, _overrides(file.parent), _message(file)))
    console = table_console()
    if reading.results:
        by_pattern = sorted(
            reading.results, key=lambda result: (result.choice.pattern, result.sparsity.sparsity_target)
        )
        console.print(results_table(by_pattern))
    for problem in reading.problems:
        print(problem)
    if failures:
        print_failures(failures)
    print(f"{len(reading.results)} points finished, {len(failures)} failed: {directory}")


def _require_named(results_dir: str) -> None:
    if not results_dir:  # Hydra would put the folders of runs at the root of the disk
        raise SystemExit("results_dir=: names no folder; the folder you stand in is .")


def _counted() -> AbstractContextManager:
    """A point of a sweep tells how far the sweep is."""
    hydra = HydraConfig.get()
    if hydra.mode is not RunMode.MULTIRUN:
        return nullcontext()
    return point_of_sweep(Path(hydra.sweep.dir), hydra.job.num)


def _close_sweep(directory: Path) -> None:
    """The tables of a sweep; a sweep that began no point leaves no folder. Whatever ended it is named by its own error."""
    try:
        if any(path.is_dir() for path in directory.iterdir()):
            print_sweep(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # results of other runs are in there
                directory.parent.rmdir()
    except Exception as error:
        print(f"no table of {directory}: {type(error).__name__}: {error}", file=sys.stderr)


def _overrides(point: Path) -> list[str]:
    try:
        return OmegaConf.to_container(OmegaConf.load(point / ".hydra" / "overrides.yaml"))
    except (OSError, ValueError, YAMLError):
        return ["not recorded"]


def _message(failure: Path) -> str:
    try:
        return json.loads(failure.read_text())["message"]
    except (OSError, ValueError, KeyError) as error:
        return f"{failure} cannot be read ({error})"


def _require_writable(directory: Path) -> None:
    """Ends the program with one line where results could not be written: Hydra itself would fail with a stack trace."""
    try:
        if (free := free_bytes(directory)) < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {in_units(free)} free")
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"no permission to write in {directory}")
    except OSError as error:
        # Hydra turns an exception of a callback into a warning, but lets an exit through.
        print(
            f"results_dir={directory.parent}: cannot be written ({error.strerror or error}); name another folder",
            file=sys.stderr,
        )
        raise SystemExit(1) from error
