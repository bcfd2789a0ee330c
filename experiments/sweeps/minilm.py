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
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from experiments.sweeps import minilm_points as points
from experiments.sweeps.minilm_points import Point
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, put_line, read_lines

HERE = Path(__file__).resolve().parent


def run(
    wanted: Sequence[Point], pool: Executor, out: Path, overrides: Sequence[str], *, workers: int, ends_at: float
) -> dict[str, Any]:
    """Finish the points that have no line yet: first the dense networks, which the others share.

    Args:
        ends_at: `time.monotonic()` after which nothing is begun any more.
    Returns:
        the line of this call, which is also in `.calls.csv`.
    """
    began, call = time.monotonic(), points.now()
    finished = {points.point_of(line) for line in read_lines(out)}
    left = sorted((point for point in wanted if point not in finished), key=lambda point: point.pattern != "dense")
    done_points, failed = 0, 0

    def note_call() -> dict[str, Any]:
        taken = {"wall_s": time.monotonic() - began, "workers": workers, "failed": failed}
        line = points.call_line(read_lines(out), call, **taken)
        put_line(out.with_suffix(".calls.csv"), line, key="call")
        return line

    after = {point: points.Point("dense", 0.0, point.seed) for point in left if point.pattern != "dense"}
    work = functools.partial(points.finish, overrides=overrides)
    for done in side_by_side(left, work, pool, workers=workers, after=after, ends_at=ends_at):
        if done.error is not None:
            failed += 1
            print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            continue
        line = points.line_of(done.job, done.found, call, began)
        append_line(out, line)
        done_points += 1
        note_call()
        told = ", ".join(f"{name} {line[f'{name}_s']:.0f}" for name in (*points.SECONDS, "other", "total"))
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
    wanted = sum(point.pattern != "dense" for point in points.all_points(seeds))
    told = [
        f"{len(done)} of {wanted} points, seeds {', '.join(map(str, seeds))}, on {lines[-1]['device']}",
        f"wall clock {sum(walls.values()) / 60:.1f} min in {len(walls)} calls",
        f"dense trainings: {sum(line['dense_trained'] == 'True' for line in lines)} for {len(seeds)} seeds",
    ]
    for name in (*points.SECONDS, "other", "total"):
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
    parser.add_argument("--workers", type=int, default=6, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    parser.add_argument("--overrides", nargs="*", default=[], help="of run.py, for all points: trainer.limit_batches=2")
    parser.add_argument("--summary", action="store_true", help="only print what the lines say")
    arguments = parser.parse_args()
    if arguments.summary:
        print("\n".join(summary(arguments.out)))
        return 0
    if arguments.bert is None or arguments.glue is None:
        parser.error("--bert and --glue name folders")
    named = {"model.path": arguments.bert, "dataset.path": arguments.glue}
    named |= {"cache_dir": arguments.folder / "cache", "results_dir": arguments.folder / "results"}
    overrides = [*(f"{key}={path.resolve()}" for key, path in named.items()), *arguments.overrides]
    ends_at = time.monotonic() + 60 * arguments.minutes
    wanted = list(points.all_points(arguments.seeds))
    with worker_processes(arguments.workers) as pool:
        call = run(wanted, pool, arguments.out, overrides, workers=arguments.workers, ends_at=ends_at)
    print("\n".join(summary(arguments.out)))
    return 1 if call["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
