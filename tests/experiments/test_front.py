"""The front: its page holds the table of its lines and records, and every line of the study is a run that is accepted."""

from pathlib import Path

import pytest

from experiments.front import study, summary
from sparsefront.config.validate import validate
from sparsefront.results.store import read_lines, read_results

FRONT = Path(__file__).resolve().parents[2] / "experiments" / "front"


def test_the_page_holds_the_table_of_its_lines():
    rows, reading = read_lines(FRONT / "squad.csv"), read_results([FRONT.parent / "records" / "front"])
    results = {result.identity.run_id: result for result in reading.results}
    assert {row["run_id"] for row in rows} <= results.keys()
    table = summary.table(rows, lambda run: reading.outcomes_of(results[run]))
    assert f"-->\n{chr(10).join(table)}\n<!--" in (FRONT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("choice", study.CHOICES)
def test_every_line_is_a_run(composed, choice):
    point = study.Point(choice, study.LEVELS[choice][0], seed=1)
    small = [
        "model=vit_small",
        "model.dim=256",
        "recovery=distill",
        "importance=taylor",
        "trainer=cpu",
        "measure.device=cpu",
    ]
    schedule = [] if choice == "depth" else ["schedule=gradual"]
    untimed = () if choice in study.SEARCHES else study.UNTIMED
    experiment = validate(composed(*small, *schedule, *point.overrides(), *untimed))
    assert experiment.seed == 1 and experiment.control == "dense_distilled"


def test_a_line_scores_what_ran_and_loses_against_the_teacher_s_dense_network():
    row = {"sparse": "", "masked": "0.8", "dense_distilled": "0.85"}
    assert summary.score(row) == pytest.approx(80) and summary.losses([row]) == pytest.approx([-5])
    assert summary.score(row | {"sparse": "0.79"}) == pytest.approx(79)
