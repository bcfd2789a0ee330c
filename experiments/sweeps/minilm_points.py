"""The points of the MiniLM sweep, what one of them took, and the lines that are kept of it."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CONF = Path(__file__).resolve().parents[2] / "conf"
SPARSITIES = {
    "element_wise": (0.75, 0.9),
    "n_m": (0.5, 0.75, 0.9),
    "vector_wise": (0.75, 0.9),
    "tile_wise": (0.5, 0.75, 0.9),
    "block_wise": (0.5, 0.75),
}
QUIET = ("logger=none", "report.html=false", "report.plot=false", "trainer.progress_bar=false")
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
        chosen = ["experiment=bert_sst2", f"seed={self.seed}", *QUIET]
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
    import torch

    from sparsefront.progress import ALONE, TIMING, recorded
    from sparsefront.provenance import provenance
    from sparsefront.runs import run_overrides

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), recorded() as spans:  # tables of each result
        folder = run_overrides([*point.overrides, *overrides], CONF)
    row = folder / "row.json"
    found: dict[str, dict[str, Any]] = json.loads(row.read_text()) if row.exists() else {}
    quality, speed = found.get("quality", {}), found.get("speed", {})
    facts = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return Cost(
        spans=[(TIMING if span.kind == ALONE else span.kind, span.start, span.end) for span in spans],
        began=began,
        ended=time.monotonic(),
        dense_trained=any(span.detail == "dense" for span in spans),
        val_sparse=quality.get("val_sparse"),
        test_sparse=quality.get("sparse"),
        speedup=speed.get("speedup"),
        device=facts.gpu or "cpu",
        torch=facts.torch_version,
        commit=facts.commit,
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
        return "" if spans is None or not wall_s else round(union_s(spans, kinds) / wall_s, 3)

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


def union_s(spans: Iterable[Span], kinds: Sequence[str]) -> float:
    """Seconds in which at least one process did one of these."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted((begin, end) for kind, begin, end in spans if kind in kinds):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def point_of(line: dict[str, str]) -> Point:
    """The point that a line is about."""
    kinds = {"sparsity": float, "seed": int}
    return Point(**{field.name: kinds.get(field.name, str)(line[field.name]) for field in fields(Point)})


def now() -> str:
    """Names a call."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
