"""What the page says of each set of comparable results: sentences and tables as text, and the points that its script draws."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefront.counted import counted
from sparsefront.report.axis import LATENCY, SPEEDUP
from sparsefront.report.budgets import budget_sentences
from sparsefront.report.candidates import budget_of, recovery_of
from sparsefront.report.comparable import CPU_NOTE, ComparableResults
from sparsefront.report.missing_cells import measured_cells
from sparsefront.report.provenance import unlike_the_rest
from sparsefront.report.ranking import pattern_ranking
from sparsefront.report.result import Result
from sparsefront.report.series_style import DENSE_COLOR, pattern_color, recovery_marker
from sparsefront.report.winners import settings_apart

AXES = (SPEEDUP, LATENCY)
SHOWN = ("pattern", "sparsity", "recovery")  # columns of the page's table beside the settings


def section_text(group: ComparableResults, verdicts: Sequence[str]) -> dict[str, Any]:
    """What the template writes into the page.

    Args:
        verdicts: how sure the reporting split is of what was picked.
    """
    return {
        "title": group.title,
        "runs": counted(len(group.results), "run"),
        "sentences": budget_sentences(group),
        "decided_on": "held-out data"
        if group.picked_by == "val"
        else "the reporting split, since nothing else was recorded",
        "ranking": pattern_ranking(group),
        "cells": measured_cells(group.candidates),
        "verdicts": verdicts,
        "notes": group.notes(),
        "shared": group.columns[1],
    }


def section_data(group: ComparableResults, places: Mapping[int, int]) -> dict[str, Any]:
    """What the page's script draws.

    Args:
        places: `id` of a result -> its place among the page's runs.
    """
    told = settings_apart(group.candidates, SHOWN)
    structures = {candidate.structure: place for place, candidate in enumerate(group.candidates)}
    points = [
        {
            "runs": [places[id(result)] for result in candidate.results],
            "label": candidate.pattern,
            "settings": " ".join(told[candidate.runs].values()),
            "structure": structures[candidate.structure],
            "budget": budget_of(candidate.results[0]) is not None,
        }
        for candidate in group.candidates
    ]
    return {
        "title": group.title,
        "runs": [places[id(result)] for result in group.results],
        "quality_label": group.quality_label,
        "picked_by": None if group.offers_no_choice else group.picked_by,
        "points": points,
        "unlike": {
            places[id(result)]: unlike[result.identity.run_id]
            for unlike in [unlike_the_rest(group.results)]
            for result in group.results
            if result.identity.run_id in unlike
        },
        "axes": {axis.name: axis.label + (f" ({CPU_NOTE})" if group.device == "cpu" else "") for axis in AXES},
    }


def styles(results: Sequence[Result]) -> dict[str, Any]:
    """Colors by pattern, symbols by recovery."""
    patterns = sorted({result.choice.pattern for result in results})
    recoveries = sorted({recovery_of(result) for result in results})
    return {
        "dense": DENSE_COLOR,
        "patterns": {pattern: pattern_color(pattern) for pattern in patterns},
        "recoveries": {recovery: recovery_marker(recovery)[1] for recovery in recoveries},
    }
