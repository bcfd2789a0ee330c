"""What surrounds a job on the command line: one message for bad input, a record of each failure, a table after a sweep."""

import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from sparsefront.artifacts.disk_space import free_bytes, in_units
from sparsefront.config import Config
from sparsefront.errors import InvalidSetting

FAILURE_FILE = "failure.json"
LEAST_FREE_BYTES = 2**18  # for Hydra's files, the log and a row; without them Hydra fails with a stack trace


class Refused(CompactHydraException):
    """Bad input: Hydra prints its message alone, without a stack trace unless HYDRA_FULL_ERROR=1."""


def refuse_null_choices(arguments: Sequence[str]) -> None:
    """Ends the program with one line where a group is set to null, which Hydra answers with a stack trace.

    Args:
        arguments: of the command line.
    """
    for group in (field.name for field in fields(Config) if field.type is Any):
        if f"{group}=null" in arguments:
            raise SystemExit(f"{group}=null: choose an option of the group: {group}=NAME; --help lists them")


@contextmanager
def job() -> Iterator[None]:
    """Runs one job: a failure is recorded in the job's output directory, then raised, so that a sweep can go on without it.

    Raises:
        Refused: for an `InvalidSetting`, with its message.
    """
    directory = Path(HydraConfig.get().runtime.output_dir)
    # Read by OpenMP when torch is first imported. Threads that spin while they wait make runs that share cores, such as the
    # points of a sweep, many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        yield
    except Exception as error:
        with suppress(OSError):  # the disk may be full
            (directory / FAILURE_FILE).write_text(json.dumps({"error": type(error).__name__, "message": str(error)}))
        if isinstance(error, InvalidSetting):
            raise Refused(str(error)) from error
        raise


class Sweep(Callback):
    """Hydra callback: refuses a results folder that cannot be written, and remembers where a sweep writes its points."""

    directory: Path | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        _require_named(config.results_dir)
        _require_writable(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        _require_named(config.results_dir)
        Sweep.directory = Path(config.hydra.sweep.dir)
        _require_writable(Sweep.directory)


@contextmanager
def sweep_summary() -> Iterator[None]:
    """After a sweep, also a failed one, prints which points finished with what, and which failed and why."""
    try:
        yield
    finally:
        if Sweep.directory is not None and Sweep.directory.is_dir():
            print_sweep(Sweep.directory)


def print_sweep(directory: Path) -> None:
    """Tables of a sweep's finished and failed points.

    Args:
        directory: the sweep's folder, one subfolder per point.
    """
    from sparsefront.report.store import read_rows
    from sparsefront.report.table import rows_table, table_console
    from sparsefront.report.terminal import Failure, print_failures

    reading = read_rows([directory])
    failures = []
    for file in sorted(directory.glob(f"*/{FAILURE_FILE}")):
        overrides = OmegaConf.to_container(OmegaConf.load(file.parent / ".hydra" / "overrides.yaml"))
        failures.append(Failure(file.parent.name, overrides, json.loads(file.read_text())["message"]))
    console = table_console()
    if reading.rows:
        by_pattern = sorted(reading.rows, key=lambda row: (row.choice.pattern, row.sparsity.sparsity_target))
        console.print(rows_table(by_pattern))
    for problem in reading.problems:
        print(problem)
    if failures:
        print_failures(failures)
    print(f"{len(reading.rows)} points finished, {len(failures)} failed: {directory}")


def _require_named(results_dir: str) -> None:
    if not results_dir:  # Hydra would put the folders of runs at the root of the disk
        raise SystemExit("results_dir=: names no folder; the folder you stand in is .")


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
