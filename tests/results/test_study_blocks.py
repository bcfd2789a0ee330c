"""Results of a study: those of another plan, without control or of several dense networks are named and not ranked."""

import pytest

from sparsefront.results.study_blocks import split_off_invalid

LINE = {
    "plan_sha256": "a" * 64,
    "dense_weights_sha256": "d" * 64,
    "dense_distilled": 0.98,
    "recovery_steps": 782,
    "time": "2026-01-02T00:00:00+00:00",
}


@pytest.mark.parametrize(
    ("others", "left", "said"),
    [
        ([{}, {"seed": 4, "dense_weights_sha256": "e" * 64}], 3, []),
        ([{"plan_sha256": None, "dense_distilled": None}], 2, []),
        ([{"recovery_steps": 0, "dense_distilled": None, "dense_weights_sha256": "e" * 64}], 2, []),
        (
            [{"plan_sha256": "b" * 64, "time": "2026-01-03T00:00:00+00:00"}],
            1,
            ["vit_small on digits: not ranked, 1 result of plan bbbbbbbb: the first run had aaaaaaaa"],
        ),
        (
            [{"plan_sha256": "b" * 64, "time": "2026-01-01T00:00:00+00:00"}],
            1,
            ["vit_small on digits: not ranked, 1 result of plan aaaaaaaa: the first run had bbbbbbbb"],
        ),
        ([{"dense_distilled": None}], 2, []),
        (
            [{"dense_distilled": None, "recovery_steps": 3125}],
            1,
            ["vit_small on digits, seed 3, 3125 steps: not ranked, 1 result without a control"],
        ),
        (
            [{}, {"dense_weights_sha256": "e" * 64}],
            0,
            ["vit_small on digits, seed 3, 782 steps: not ranked, 3 results of 2 dense networks (dddddddd, eeeeeeee)"],
        ),
    ],
)
def test_invalid_results_are_named(make_result, others, left, said):
    results = [make_result(**LINE), *(make_result(**LINE | changes) for changes in others)]
    counting, lines = split_off_invalid(results)
    assert lines == said and len(counting) == left and all(result in results for result in counting)
