"""Compare the latency search, which mixes patterns and sparsities, with a single pattern for the whole network.

    python -m experiments.search.study --workers 6 --overrides experiment=bert_sst2 model.path=DIR dataset.path=DIR

--overrides of `run.py` hold for all points, such as measure.batch_size=128. Every point trains its recovery, and continued dense
for the same budget. Processes share the GPU: the dense network of each seed comes first, then the seed's first search, whose
measurements its other searches reuse. A line is added to --out when its point is finished, so that a killed study resumes. Lines
with other --overrides, or of searches with other --candidates or another --ceiling, need another file.
A search whose target cannot be reached is reported and skipped. `--until export` only trains and measures what the searches need,
and writes no line; a call without it reuses the stored trainings.
`draw.py` draws the fronts, `summary.py` makes the page's tables.
"""

import argparse
import functools
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.harness import runs
from experiments.harness.rows import COMMIT_DIGITS, Row, text
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, read_lines

if TYPE_CHECKING:
    from sparsefront.results.record import Result

WEIGHTS_DIGITS = 8
SEARCH, DENSE = "search", "dense"
OVERRIDES = "overrides"
STAGES = ("dense", "prune", "recover", "export")
MEASURED = (
    "metric_name val_dense val_dense_continued val_sparse val_sparse_standard_error dense dense_continued masked "
    "sparse sparse_standard_error latency_dense_ms latency_sparse_ms latency_predicted_ms speedup speedup_low "
    "speedup_high sparsity_achieved sparse_flops_share prune_seconds recover_seconds run_id outcomes_file gpu "
    "torch_version commit dense_weights_sha256 time"
).split()


@dataclass(frozen=True)
class Point:
    """One line.

    Args:
        choice: "search"; a single pattern as NAME[:GRANULARITY] with optional overrides, such as "channel pattern.axis=width";
            or "dense", which has no line.
        level: target speedup of the search, or sparsity of the single pattern.
        seed: of the dense network and everything after it.
    """

    choice: str
    level: float
    seed: int

    def overrides(self, candidates: Sequence[str], ceiling: float) -> list[str]:
        """Overrides of `run.py`.

        Args:
            candidates, ceiling: patterns of the search, and its maximum sparsity of a layer.
        """
        if self.choice == DENSE:
            return [f"seed={self.seed}", "pattern=dense", "stages=[dense]", *runs.QUIET]
        shared = [f"seed={self.seed}", "control=dense_continued", *runs.QUIET]
        if self.choice == SEARCH:
            search = ["pattern=mixed", "allocation=latency_search", f"allocation.speedup={self.level:g}"]
            return [*shared, *search, *_of_search(candidates, ceiling)]
        pattern, *own = self.choice.split()
        name, _, granularity = pattern.partition(":")
        unit = [f"granularity={granularity}"] if granularity else []
        return [*shared, f"pattern={name}", *unit, f"sparsity={self.level:g}", *own]

    @property
    def cells(self) -> Row:
        """Cells that identify its line."""
        return {"choice": self.choice, "level": f"{self.level:g}", "seed": str(self.seed)}


def run_point(
    point: Point, *, candidates: Sequence[str], ceiling: float, overrides: Sequence[str], until: str | None = None
) -> Row | str | None:
    """Run a point in this process, unless it is finished.

    Args:
        candidates, ceiling: of the search.
        overrides: of run.py, the same for all points.
        until: the last stage; None: all of them.
    Returns:
        its line; None if it ends before it is measured, like the dense network; or the reason why it is unsupported.
    Raises:
        Obstacle: the point could not run for lack of disk space, memory or a package.
    """
    last = []
    if until is not None and point.choice != DENSE:
        last = [f"stages=[{','.join(STAGES[: STAGES.index(until) + 1])}]"]
    # the point's own first, so that the user's take precedence
    record = runs.record_of([*point.overrides(candidates, ceiling), *last, *overrides])
    if record is None or isinstance(record, str):
        return record
    return line_of(point, record, settings_of(point.choice, candidates, ceiling, overrides))


def line_of(point: Point, record: "Result", settings: str) -> Row:
    """The line of a point, from the record of its run and the settings it shares with others."""
    found = {name: record.value_of(name) for name in MEASURED}
    for name, digits in (("commit", COMMIT_DIGITS), ("dense_weights_sha256", WEIGHTS_DIGITS)):
        found[name] = (found[name] or "")[:digits]  # no commit outside a checkout
    return point.cells | {name: str(text(value)) for name, value in found.items()} | {OVERRIDES: settings}


def settings_of(choice: str, candidates: Sequence[str], ceiling: float, overrides: Sequence[str]) -> str:
    """Settings that all points of a choice share, as in their lines: sorted overrides without local folders and, for a search,
    its sorted candidates and its ceiling.
    """
    shared = runs.without_places(overrides)
    if choice == SEARCH:
        shared += _of_search(sorted(candidates), ceiling)
    return shlex.join(sorted(shared))


def _of_search(candidates: Sequence[str], ceiling: float) -> list[str]:
    return [f"pattern.candidates=[{','.join(candidates)}]", f"sparsity={ceiling:g}"]


def told(line: Row) -> str:
    """A line as text for the terminal."""
    named = ("val_sparse", "sparse", "dense_continued", "latency_sparse_ms", "speedup", "prune_seconds")
    return ", ".join(f"{name} {float(line[name]):.4g}" for name in named if line.get(name))


def unfinished(wanted: Sequence[Point], rows: Sequence[Row]) -> list[Point]:
    """The points without a line."""
    known = [{name: row[name] for name in ("choice", "level", "seed")} for row in rows]
    return [point for point in wanted if point.cells not in known]


def wanted(
    singles: Sequence[str], sparsities: Sequence[float], speedups: Sequence[float], seeds: Sequence[int]
) -> list[Point]:
    """All points, seed by seed, so that an unfinished study is a complete one of fewer seeds."""
    found = []
    for seed in seeds:
        found += [Point(SEARCH, speedup, seed) for speedup in speedups]
        found += [Point(single, sparsity, seed) for single in singles for sparsity in sparsities]
    return found


def order(todo: Sequence[Point]) -> dict[Point, Point]:
    """Point -> the point it waits for: the dense network, or the first search, of its seed."""
    after: dict[Point, Point] = {}
    first: dict[int, Point] = {}
    for point in todo:
        dense = Point(DENSE, 0.0, point.seed)
        after[point] = first.setdefault(point.seed, point) if point.choice == SEARCH else dense
    return after | {point: Point(DENSE, 0.0, point.seed) for point in first.values()}


def finish(
    todo: Sequence[Point], pool: Executor, arguments: argparse.Namespace, ends_at: float = float("inf")
) -> list[Point]:
    """Run the points and write their lines; return those left for the next call."""
    candidates = candidates_of(arguments)
    after = order(todo)
    jobs = [*dict.fromkeys(Point(DENSE, 0.0, point.seed) for point in todo), *todo]
    work = functools.partial(
        run_point,
        candidates=candidates,
        ceiling=arguments.ceiling,
        overrides=arguments.overrides,
        until=arguments.until,
    )
    left = list(todo)
    for done in side_by_side(jobs, work, pool, workers=arguments.workers, after=after, ends_at=ends_at):
        if done.error is not None:
            print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            continue
        if done.job.choice == DENSE:
            continue
        left.remove(done.job)
        if isinstance(done.found, str):
            print(f"{done.job} is left out: {done.found}", flush=True)
            continue
        if done.found is None:
            print(f"{done.job}: stored up to {arguments.until}", flush=True)
            continue
        append_line(arguments.out, done.found)
        print(f"{done.job}: {told(done.found)}", flush=True)
    return left


def candidates_of(arguments: argparse.Namespace) -> list[str]:
    """The search's patterns, by default the single ones."""
    return arguments.candidates or arguments.singles


def require_same_settings(path: Path, lines: Sequence[Mapping[str, str]], arguments: argparse.Namespace) -> None:
    """Raise SystemExit if lines were measured with other overrides or search settings than this study's."""
    candidates = candidates_of(arguments)
    for line in lines:
        ours = settings_of(line["choice"], candidates, arguments.ceiling, arguments.overrides)
        if (theirs := line.get(OVERRIDES)) != ours:
            whose = "those of searches" if line["choice"] == SEARCH else "its lines"
            unsaid = "do not say with which --overrides they were measured"
            said = unsaid if theirs is None else f"are of {theirs or 'none'}"
            raise SystemExit(f"--out {path}: {whose} {said}, not of {ours or 'none'}: name another file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/search/rows.csv"))
    parser.add_argument("--singles", nargs="*", default=["tile_wise:128", "n_m", "block_wise:64", "vector_wise:32"])
    parser.add_argument("--candidates", nargs="+", help="of the search; the single patterns where none are named")
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.75, 0.875, 0.9375])
    parser.add_argument("--speedups", type=float, nargs="*", default=[1.25, 1.5, 2.0, 2.5, 3.0])
    parser.add_argument("--ceiling", type=float, default=0.95, help="on the sparsity of a layer in the search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--until", choices=["prune", "export"], help="the last stage; nothing is measured")
    runs.add_options(parser)
    arguments = parser.parse_args()
    ends_at = runs.ends_at(arguments.minutes)
    points_wanted = wanted(arguments.singles, arguments.sparsities, arguments.speedups, arguments.seeds)
    lines = read_lines(arguments.out)
    require_same_settings(arguments.out, lines, arguments)
    todo = unfinished(points_wanted, lines)
    with worker_processes(arguments.workers) as pool:
        if left := finish(todo, pool, arguments, ends_at):
            print(f"{len(left)} points are left for the next call", flush=True)


if __name__ == "__main__":
    main()
