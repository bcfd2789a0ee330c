"""The tables that close a sweep: its finished points, and those that failed."""

from pathlib import Path

from sparsefront.artifacts.walk import below
from sparsefront.counted import counted
from sparsefront.printable import printable
from sparsefront.report.failed_runs import failure_message
from sparsefront.report.run_command import recorded_overrides
from sparsefront.report.store import RESULT_FILE, read_results
from sparsefront.report.terminal import Failure, print_failures, print_results
from sparsefront.run_folder import FAILURE_FILE


def print_sweep(directory: Path) -> None:
    """Tables of a sweep's finished and failed points.

    Args:
        directory: the sweep's folder, one subfolder per point.
    """
    files = sorted(below(directory, RESULT_FILE))
    reading = read_results(files)
    failures = [
        Failure(file.parent.name, recorded_overrides(file.parent) or ["not recorded"], failure_message(file))
        for file in sorted(below(directory, FAILURE_FILE))
    ]
    if reading.results:
        by_pattern = sorted(
            reading.results, key=lambda result: (result.choice.pattern, result.sparsity.sparsity_target)
        )
        print_results(by_pattern)
    for problem in reading.problems:
        print(printable(problem))
    if failures:
        print_failures(failures)
    finished, distinct = len(files) - len(reading.problems), len(reading.results)
    # points whose settings mean the same share one result
    shared = f" with {counted(distinct, 'different result')}" if distinct < finished else ""
    print(f"{counted(finished, 'point')} finished{shared}, {len(failures)} failed: {directory}")
