"""Results of a study: those of another plan, without control or of several dense networks are named and not ranked."""

import pytest

from sparsefront.results.study_blocks import split_off_invalid

LINE = {"plan_sha256": "a" * 64, "dense_weights_sha256": "d" * 64, "dense_distilled": 0.98, "recovery_steps": 782}
LINE |= {"time": "2026-01-02T00:00:00+00:00"}
OTHER_PLAN, OTHER_DENSE, NO_CONTROL = (
    {"plan_sha256": "b" * 64},
    {"dense_weights_sha256": "e" * 64},
    {"dense_distilled": None},
)
LATER, EARLIER = {"time": "2026-01-03T00:00:00+00:00"}, {"time": "2026-01-01T00:00:00+00:00"}
RUNS = "vit_small on digits"


@pytest.mark.parametrize(
    ("others", "left", "line"),
    [
        ([{}, {"seed": 4} | OTHER_DENSE], 3, None),
        ([{"plan_sha256": None} | NO_CONTROL], 2, None),
        ([{"recovery_steps": 0} | NO_CONTROL | OTHER_DENSE], 2, None),
        ([NO_CONTROL], 2, None),
        ([OTHER_PLAN | LATER], 1, f"{RUNS}: not ranked, 1 result of plan bbbbbbbb: the first run had aaaaaaaa"),
        ([OTHER_PLAN | EARLIER], 1, f"{RUNS}: not ranked, 1 result of plan aaaaaaaa: the first run had bbbbbbbb"),
        (
            [{"recovery_steps": 3125} | NO_CONTROL],
            1,
            f"{RUNS}, seed 3, 3125 steps: not ranked, 1 result without a control",
        ),
        (
            [{}, OTHER_DENSE],
            0,
            f"{RUNS}, seed 3, 782 steps: not ranked, 3 results of 2 dense networks (dddddddd, eeeeeeee)",
        ),
    ],
)
def test_invalid_results_are_named(make_result, others, left, line):
    results = [make_result(**LINE), *(make_result(**LINE | changes) for changes in others)]
    counting, lines = split_off_invalid(results)
    assert (
        lines == ([] if line is None else [line])
        and len(counting) == left
        and all(result in results for result in counting)
    )
