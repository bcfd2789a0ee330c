"""Accounts of time: blocks inside others count for themselves, and waits are no work."""

import time
from itertools import pairwise

from sparsefront.progress import EVALUATION, TIMING, WAITING, record_spans, track_time, working_time


def test_inner_block_counts_for_itself():
    with record_spans() as spans, track_time(TIMING, "layers"):
        time.sleep(0.02)
        with track_time(WAITING):
            time.sleep(0.05)
        time.sleep(0.01)
    assert [(span.kind, span.detail) for span in spans] == [(TIMING, "layers"), (WAITING, ""), (TIMING, "layers")]
    first, waited, last = spans
    assert first.seconds >= 0.02 and waited.seconds >= 0.05 and last.seconds >= 0.01
    assert all(one.end == other.start for one, other in pairwise(spans)), "no moment counts twice, or not at all"


def test_clock_stands_still_while_waiting():
    wall, start = time.perf_counter(), working_time()  # in this order, so that a pause in between lengthens `passed`
    with track_time(EVALUATION):
        time.sleep(0.01)
        with track_time(WAITING), track_time(WAITING):
            time.sleep(0.1)
    worked, passed = working_time() - start, time.perf_counter() - wall
    assert 0.01 <= worked < passed - 0.09


def test_a_failure_ends_its_block():
    with record_spans() as spans:
        try:
            with track_time(TIMING):
                raise KeyError
        except KeyError:
            pass
        with track_time(EVALUATION):
            pass
    assert [span.kind for span in spans] == [TIMING, EVALUATION]
