"""The front: its page holds the table of its lines and records, and every line of the study is a run that is accepted."""

from pathlib import Path

import numpy as np
import pytest

from experiments.front import study, summary
from experiments.harness.rows import write
from sparsefront.config.validate import validate
from sparsefront.results.store import read_results
from sparsefront.tasks.outcomes import Outcomes

FRONT = Path(__file__).resolve().parents[2] / "experiments" / "front"


def test_the_page_holds_the_table_of_its_lines():
    rows, reading = summary.read_rows([FRONT / "squad.csv"]), read_results([FRONT.parent / "records" / "front"])
    results = {result.identity.run_id: result for result in reading.results}
    assert {row["run_id"] for row in rows} <= results.keys()
    lines = summary.lines_of(rows, lambda run: reading.outcomes_of(results[run]))
    page = (FRONT / "README.md").read_text(encoding="utf-8")
    assert f"-->\n{chr(10).join(summary.table(lines))}\n<!--" in page
    assert f"\n\n{chr(10).join(summary.table_of_kinds(lines))}\n\n{summary.sparse_in_words(lines)}" in page


@pytest.mark.parametrize("choice", study.CHOICES)
@pytest.mark.parametrize("recovered", [True, False])
def test_every_point_is_a_run(composed, choice, recovered):
    point = study.Point(choice, study.LEVELS[choice][0], 1, study.BF16, recovered)
    small = ["model=vit_small", "model.dim=256", "recovery=distill", "importance=taylor", "schedule=gradual"]
    untimed = () if choice in study.SEARCHES else study.UNTIMED  # a search measures times
    overrides = [*point.overrides(), *untimed]
    names = {text.partition("=")[0] for text in overrides}
    device = ["trainer=cpu", "measure.device=cpu"]
    experiment = validate(
        composed(*(text for text in small if text.partition("=")[0] not in names), *overrides, *device)
    )
    trained = recovered and choice != study.DENSE
    assert experiment.seed == 1 and experiment.measure.dtype == "bf16"
    assert experiment.control == ("dense_distilled" if trained else None)
    is_gradual = trained and choice not in ("depth", "2:4", "n:m")
    assert experiment.schedule.name == ("gradual" if is_gradual or recovered and choice == study.DENSE else "one_shot")


def test_a_line_scores_what_ran_and_loses_against_the_teacher_s_dense_network():
    row = {"choice": "depth", "sparse": "", "masked": "0.8", "dense": "0.83", "dense_distilled": "0.85"}
    assert summary.score(row) == pytest.approx(80) and summary.losses([row]) == pytest.approx([-5])
    assert summary.score(row | {"sparse": "0.79"}) == pytest.approx(79)


ROW = {name: "" for name in ("choice", "level", "seed", *study.MEASURED)} | {
    "metric_name": "f1",
    "dense": "0.84",
    "dense_distilled": "0.86",
    "precision": "fp16",
    "gpu": "H200",
    "commit": "1234567",
    "torch_version": "2.11",
}
PLACES = {
    name: "1.2"
    for name in (*summary.LATENCIES[:-1], *(f"{speed}_{end}" for speed in summary.SPEEDS for end in ("low", "high")))
}


def row(choice, level, seed, speedup="", **more):
    timed = PLACES | {"speedup_dataset": speedup} if speedup else {}
    named = {"choice": choice, "level": str(level), "seed": str(seed), "run_id": f"{choice} {level} {seed}"}
    return ROW | named | {"masked": "0.85"} | timed | more


def answers(seed, right):
    """Ones of a share of 4,000 questions, mostly the same ones in every network of a seed."""
    return Outcomes("f1", (np.random.RandomState(seed).rand(4000) < right).astype(np.uint8), None, "same")


def test_a_bound_counts_questions_and_seeds_and_names_the_fastest_line_of_each_kind():
    shares = {"depth 0.25": 0.855, "depth 0.5": 0.79, "width 0.25": 0.852, "2:4 0.5": 0.8555, "search 1.5": 0.85}
    rows = [
        *(row("depth", level, seed, speed) for level, speed in ((0.25, "1.3"), (0.5, "2")) for seed in range(3)),
        *(row("width", 0.25, seed, "1.2") for seed in range(3)),
        *(row("2:4", 0.5, seed, "1.56") for seed in range(5)),
        *(row("search", 1.5, seed, "1.5") for seed in range(2)),
        *(row("blocks of 64", 0.5, seed, "1.9") for seed in range(3)),
    ]

    def outcomes_of(run):
        name, seed = run.rsplit(" ", 1)
        if name not in shares or run == "2:4 0.5 4":
            return {"masked": answers(int(seed), 0.8)}
        return {"masked": answers(int(seed), shares[name]), "dense_distilled": answers(int(seed), 0.86)}

    lines = {line.name: line for line in summary.lines_of(rows, outcomes_of)}
    for name, least in (("depth 25%", 0.5), ("depth 50%", 7)):
        lost = lines[name].lost
        assert lost.low < lost.bound < lost.value < 0 and lines[name].most_lost == pytest.approx(least, abs=0.5)
    best = summary.fastest_within(list(lines.values()))
    assert {kind: line and line.name for kind, line in best.items()} == {
        "single patterns": "2:4 50%",  # blocks, which are faster, have no outcomes
        "search": None,  # two seeds
        "depth": "depth 25%",  # half of the layers lose too much
        "width": "width 25%",
    }
    kinds = summary.table_of_kinds(list(lines.values()))
    assert "| search | none | – | 1 of 1 |" in kinds
    assert "| single patterns | 2:4 50% | 1.56× (1.20–1.20) | 1 of 2 |" in kinds
    assert "1.20 times" in summary.sparse_in_words(list(lines.values()))
    table = "\n".join(summary.table(list(lines.values())))
    assert "(4 seeds)" in table and "no outcomes" in table


def test_precisions_are_lines_of_their_own(tmp_path):
    rows = [row("blocks of 64", 0.5, 0, "1.5"), row("blocks of 64", 0.5, 0, "2.5", precision="fp8")]
    rows += [row("dense", 0, 0, "1.4", precision="fp8", masked="", sparse="0.83", dense_distilled="")]
    dense, *blocks = summary.lines_of(rows)
    assert [line.name for line in (dense, *blocks)] == ["dense in fp8", "blocks of 64 50%", "blocks of 64 50% in fp8"]
    assert summary.losses(dense.rows) == pytest.approx([-1]) and dense.kind == "dense"
    over = row("2:4", 0.5, 0, "1.5") | {f"{summary.OVER_LOW}{end}": "0.9" for end in ("", "_low", "_high")}
    head, _, line, other = summary.table(summary.lines_of([over, rows[0]]))
    assert head.endswith("over dense in low precision |") and "0.90× (0.90–0.90) |" in line and other.endswith("| – |")
    assert summary.draw([dense, *blocks], tmp_path / "front.png").exists()
    points = study.points_of(["dense", "blocks of 64"], [0], ["none", "fp8"])
    assert sum(any(map(point.is_of, rows)) for point in points) == 3 and len(points) == 5
    assert "precision=fp8" in points[2].overrides() and not any("precision" in text for text in points[0].overrides())


def test_bf16_is_for_timed_networks():
    points = study.points_of(["2:4"], [0, 1], ["none", "bf16"], timed=[0])
    assert [(point.precision, point.seed) for point in points] == [("none", 0), ("bf16", 0), ("none", 1)]
    rows = [row("2:4", 0.5, 0, "1.3", precision="bf16"), row("2:4", 0.5, 1, recovery="none")]
    assert [any(map(point.is_of, rows)) for point in points] == [False, True, False]
    masks = study.points_of(["2:4"], [1], recovered=False)
    assert masks[0].is_of(rows[1]) and masks[0].is_timed([]) and "recovery=none" in masks[0].overrides()
    assert "schedule=one_shot" in points[0].overrides() and "recovery=none" not in points[0].overrides()


def test_latencies_of_two_commits_share_no_figure(tmp_path):
    def files(*of_each):
        return [write(tmp_path / f"{place}.csv", list(ROW), rows) for place, rows in enumerate(of_each)]

    old, new = row("depth", 0.5, 0, "1.9"), row("depth", 0.25, 0, "1.3", commit="7654321")
    untimed, again = row("depth", 0.5, 1, commit="7654321"), row("depth", 0.25, 0, "1.4", commit="7654321")
    assert len(summary.read_rows(files([old], [untimed]))) == 2, "without latency it may be of any commit"
    with pytest.raises(ValueError, match="H200 1234567 2.11; H200 7654321 2.11; name one with --commit"):
        summary.read_rows(files([old], [new]))
    with pytest.raises(ValueError, match="rows of accuracy and f1"):
        summary.read_rows(files([old], [untimed | {"metric_name": "accuracy"}]))
    found = summary.read_rows(files([old, new], [again, untimed]), commit="7654321")
    assert [found["speedup_dataset"] for found in found] == ["", "1.4", ""], "the last row of a point counts"
