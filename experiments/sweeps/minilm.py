"""What a sweep costs: 12 points of MiniLM on SST-2 for each seed, several processes side by side on one GPU.

    python -m experiments.sweeps.minilm --bert DIR --glue DIR [--workers 6] [--seeds 0 1 2] [--minutes 25] [--overrides ...]

--bert: all-MiniLM-L6 as `save_pretrained` writes it; --glue: GLUE in its original layout. The dense network of each seed is
trained once, first; then the points, whose trainings and evaluations share the GPU while timings have it alone. A line is added
to --out as soon as its point is finished, with what it spent its time on and when, so that a killed sweep goes on where it was;
the file beside it, `.calls.csv`, holds the wall clock of each call and is brought up to date after each point. SIGTERM ends the
sweep and its processes at once. Needs no launcher of Hydra's. `minilm.py --summary` prints what the lines say.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.harness import runs
from experiments.harness.measure import union
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, put_line, read_lines

HERE = Path(__file__).resolve().parent
SPARSITIES = {
    "element_wise": (0.75, 0.9),
    "n_m": (0.5, 0.75, 0.9),
    "vector_wise": (0.75, 0.9),
    "tile_wise": (0.5, 0.75, 0.9),
    "block_wise": (0.5, 0.75),
}
SECONDS = ("training", "pruning", "evaluation", "timing", "waiting")
WORK = SECONDS[:-1]
GAP_S = 0.1  # pauses below it are none

Span = tuple[str, float, float]  # kind, begin, end


@dataclass(frozen=True)
class Point:
    """A pruned network, or the dense one that those of a seed share."""

    pattern: str
    sparsity: float
    seed: int

    @property
    def overrides(self) -> list[str]:
        """What `run.py` takes to choose it."""
        chosen = ["experiment=bert_sst2", f"seed={self.seed}", *runs.QUIET]
        if self.pattern == "dense":
            return [*chosen, "pattern=dense", "stages=[dense]"]
        return [*chosen, f"pattern={self.pattern}", f"sparsity={self.sparsity:g}"]


def all_points(seeds: Sequence[int]) -> Iterator[Point]:
    """Seed by seed, the dense network first."""
    for seed in seeds:
        yield Point("dense", 0.0, seed)
        for pattern, sparsities in SPARSITIES.items():
            for sparsity in sparsities:
                yield Point(pattern, sparsity, seed)


@dataclass(frozen=True)
class Cost:
    """What a point took.

    Args:
        spans: (what, begin, end) in seconds of `time.monotonic`, of what the process spent its time on.
        began, ended: of the same clock.
        dense_trained: whether this point trained the dense network, rather than found it.
        val_sparse, test_sparse, speedup: of the result; None of the dense network.
    """

    spans: list[Span]
    began: float
    ended: float
    dense_trained: bool
    val_sparse: float | None
    test_sparse: float | None
    speedup: float | None
    device: str
    torch: str
    commit: str | None

    def seconds(self, what: str) -> float:
        return sum(end - begin for kind, begin, end in self.spans if kind == what)


def finish(point: Point, overrides: Sequence[str]) -> Cost:
    """Run a point in this process, unless it is finished, and account for its time.

    Args:
        overrides: of run.py, the same for all points.
    """
    began = time.monotonic()
    from experiments.harness.rows import where_and_when
    from sparsefront.progress import ALONE, SEARCH, TIMING, recorded

    with recorded() as spans:
        record = runs.record_of([*point.overrides, *overrides])
    if isinstance(record, str):
        raise RuntimeError(record)
    found = [None if record is None else record.value_of(name) for name in ("val_sparse", "sparse", "speedup")]
    here = where_and_when()
    return Cost(
        spans=[(TIMING if span.kind in (ALONE, SEARCH) else span.kind, span.start, span.end) for span in spans],
        began=began,
        ended=time.monotonic(),
        dense_trained=any(span.detail == "dense" for span in spans),
        **dict(zip(("val_sparse", "test_sparse", "speedup"), found, strict=True)),
        device=here["gpu"] or "cpu",
        torch=here["torch"],
        commit=here["commit"] or None,
    )


def line_of(point: Point, cost: Cost, call: str, call_began: float) -> dict[str, Any]:
    """The line of a point: seconds of each kind, what is left of its time, and when in its call it began and ended."""
    split = {f"{what}_s": cost.seconds(what) for what in SECONDS}
    total = cost.ended - cost.began
    times = {**split, "other_s": total - sum(split.values()), "total_s": total}
    times |= {"began_s": cost.began - call_began, "ended_s": cost.ended - call_began}
    left_out = ("spans", "began", "ended")
    rest = {name: value for name, value in asdict(cost).items() if name not in left_out}
    rounded = {name: round(value, 2) for name, value in times.items()}
    return {"call": call, **asdict(point), **rounded, **rest, "spans": _spans_text(cost.spans, call_began)}


def _spans_text(spans: Iterable[Span], call_began: float) -> str:
    """What the GPU or the CPU worked on and when, as JSON: kind -> [[begin, end], ...] in seconds of the call."""
    merged: dict[str, list[list[float]]] = {}
    for kind, begin, end in sorted(spans, key=lambda span: span[1]):
        if kind not in WORK:
            continue
        of_kind = merged.setdefault(kind, [])
        begin, end = round(begin - call_began, 2), round(end - call_began, 2)
        if of_kind and begin - of_kind[-1][1] < GAP_S:
            of_kind[-1][1] = max(end, of_kind[-1][1])
        else:
            of_kind.append([begin, end])
    return json.dumps(merged, separators=(",", ":"))


def spans_of(line: dict[str, str]) -> list[Span] | None:
    """The spans of a line; None of one that holds none."""
    if not line["spans"]:
        return None
    return [(kind, begin, end) for kind, pairs in json.loads(line["spans"]).items() for begin, end in pairs]


def call_line(
    lines: Iterable[dict[str, str]], call: str, *, workers: int, wall_s: float, failed: int
) -> dict[str, Any]:
    """What a call took so far, from the lines of its points.

    Shares are of the wall clock in which at least one process did this; points that are not finished count for nothing, so that
    of a call that was cut off they are lower bounds. Empty where a line holds no spans.
    """
    of_call = [line for line in lines if line["call"] == call]
    found = [spans_of(line) for line in of_call]
    spans = None if None in found else [span for part in found for span in part or ()]

    def share(kinds: Sequence[str]) -> float | str:
        return (
            ""
            if spans is None or not wall_s
            else round(union(span[1:] for span in spans if span[0] in kinds) / wall_s, 3)
        )

    return {
        "call": call,
        "workers": workers,
        "points": len(of_call),
        "failed": failed,
        "wall_s": round(wall_s, 1),
        "share_training_or_timing": share(("training", "timing")),
        "share_any_work": share(WORK),
        "dense_trainings": sum(line["dense_trained"] == "True" for line in of_call),
    }


def point_of(line: dict[str, str]) -> Point:
    """The point that a line is about."""
    kinds = {"sparsity": float, "seed": int}
    return Point(**{field.name: kinds.get(field.name, str)(line[field.name]) for field in fields(Point)})


def now() -> str:
    """Names a call."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(
    wanted: Sequence[Point], pool: Executor, out: Path, overrides: Sequence[str], *, workers: int, ends_at: float
) -> dict[str, Any]:
    """Finish the points that have no line yet: first the dense networks, which the others share.

    Args:
        ends_at: `time.monotonic()` after which nothing is begun any more.
    Returns:
        the line of this call, which is also in `.calls.csv`.
    """
    began, call = time.monotonic(), now()
    finished = {point_of(line) for line in read_lines(out)}
    left = sorted((point for point in wanted if point not in finished), key=lambda point: point.pattern != "dense")
    done_points, failed = 0, 0

    def note_call() -> dict[str, Any]:
        taken = {"wall_s": time.monotonic() - began, "workers": workers, "failed": failed}
        line = call_line(read_lines(out), call, **taken)
        put_line(out.with_suffix(".calls.csv"), line, key="call")
        return line

    after = {point: Point("dense", 0.0, point.seed) for point in left if point.pattern != "dense"}
    work = functools.partial(finish, overrides=overrides)
    for done in side_by_side(left, work, pool, workers=workers, after=after, ends_at=ends_at):
        if done.error is not None:
            failed += 1
            print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            continue
        line = line_of(done.job, done.found, call, began)
        append_line(out, line)
        done_points += 1
        note_call()
        told = ", ".join(f"{name} {line[f'{name}_s']:.0f}" for name in (*SECONDS, "other", "total"))
        print(f"{done.job}: {told} s", flush=True)
    if (later := len(left) - done_points - failed) > 0:
        print(f"out of time: {later} points are left for the next call", flush=True)
    return note_call()


def summary(out: Path) -> list[str]:
    """What the lines say, in one page of a terminal; a call that was killed counts until its last line."""
    lines, calls = read_lines(out), read_lines(out.with_suffix(".calls.csv"))
    if not lines:
        return [f"{out}: no lines yet"]
    walls = {line["call"]: 0.0 for line in lines}
    for line in lines:
        walls[line["call"]] = max(walls[line["call"]], float(line["ended_s"]))
    walls |= {call["call"]: float(call["wall_s"]) for call in calls}
    seeds = sorted({int(line["seed"]) for line in lines})
    done = [line for line in lines if line["pattern"] != "dense"]
    wanted = sum(point.pattern != "dense" for point in all_points(seeds))
    told = [
        f"{len(done)} of {wanted} points, seeds {', '.join(map(str, seeds))}, on {lines[-1]['device']}",
        f"wall clock {sum(walls.values()) / 60:.1f} min in {len(walls)} calls",
        f"dense trainings: {sum(line['dense_trained'] == 'True' for line in lines)} for {len(seeds)} seeds",
    ]
    for name in (*SECONDS, "other", "total"):
        told.append(f"{name:>12}: {sum(float(line[f'{name}_s']) for line in lines):7.0f} s of all processes")
    for call in calls:
        share = call["share_training_or_timing"]
        shares = f"training or timing {float(share):.0%} of the wall clock" if share else "shares not recorded"
        told.append(f"{call['call']}: {call['workers']} workers, {call['points']} points, {call['wall_s']} s, {shares}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "minilm.csv")
    parser.add_argument("--folder", type=Path, default=Path(".cache/minilm_sweep"), help="of its cache and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    runs.add_options(parser, workers=6)
    parser.add_argument("--summary", action="store_true", help="only print what the lines say")
    arguments = parser.parse_args()
    if arguments.summary:
        print("\n".join(summary(arguments.out)))
        return 0
    if arguments.bert is None or arguments.glue is None:
        parser.error("--bert and --glue name folders")
    named = [f"model.path={arguments.bert.resolve()}", f"dataset.path={arguments.glue.resolve()}"]
    overrides = [*named, *runs.folders_below(arguments.folder.resolve()), *arguments.overrides]
    ends_at = runs.ends_at(arguments.minutes)
    wanted = list(all_points(arguments.seeds))
    with worker_processes(arguments.workers) as pool:
        call = run(wanted, pool, arguments.out, overrides, workers=arguments.workers, ends_at=ends_at)
    print("\n".join(summary(arguments.out)))
    return 1 if call["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
