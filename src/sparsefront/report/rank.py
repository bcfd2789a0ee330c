"""Which of several results of one run, or of runs with the same seeds, counts."""

from collections.abc import Mapping

from sparsefront.report.result import Result

Rank = tuple[bool, str]


def rank(result: Result) -> Rank:
    """The higher one counts: that with the control, which alone says what training did; else the newer one."""
    return result.quality.dense_continued is not None, result.identity.time


def rank_of_line(line: Mapping[str, str]) -> Rank:
    """`rank` of a line of the store, column -> cell."""
    return bool(line.get("dense_continued")), line.get("time", "")
