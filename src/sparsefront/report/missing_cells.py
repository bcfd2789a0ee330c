"""Which cells of a study's grid, pattern with recovery by sparsity, hold how many runs."""

from collections.abc import Sequence

from sparsefront.counted import counted
from sparsefront.report.candidates import Candidate, budget_of

MISSING = "missing"
NAMED_WHERE_DIFFERENT = ("distribution", "importance", "allocation", "schedule")


def measured_cells(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per pattern (with granularity or n:m) and recovery, one column per sparsity; `missing` where nothing was
    measured. Empty where there is no grid.

    Distribution of a pattern, importance, allocation and schedule tell lines apart too, each where two candidates chose
    it differently. What was given a budget is no cell: its sparsity is a ceiling.
    """
    candidates = [candidate for candidate in candidates if budget_of(candidate.results[0]) is None]
    sparsities = sorted({candidate.sparsity for candidate in candidates})
    named = [name for name in NAMED_WHERE_DIFFERENT if len({_chosen(one, name) for one in candidates} - {""}) > 1]
    seeds: dict[tuple[str, ...], dict[float, set]] = {}
    for candidate in candidates:
        line = _pattern(candidate), *(_chosen(candidate, name) for name in named), candidate.recovery
        of_line = seeds.setdefault(line, {})
        of_line.setdefault(candidate.sparsity, set()).update(candidate.seeds)
    if len(sparsities) < 2 or len(seeds) < 2:
        return []
    return [
        dict(zip(("pattern", *named, "recovery"), line, strict=True))
        | {f"sparsity {sparsity:g}": _cell(held.get(sparsity, ())) for sparsity in sparsities}
        for line, held in sorted(seeds.items())
    ]


def _pattern(candidate: Candidate) -> str:
    """Without n:m, which follows from the sparsity where it was not chosen."""
    choice = candidate.results[0].choice
    windows = choice.pattern_parameters.get("m")
    parts = (choice.pattern, choice.granularity, None if windows is None else f"m={windows}")
    return " ".join(str(part) for part in parts if part is not None)


def _chosen(candidate: Candidate, name: str) -> str:
    """Empty where there was nothing to choose."""
    choice = candidate.results[0].choice
    chosen = choice.pattern_parameters.get(name) if name == "distribution" else getattr(choice, name)
    return chosen or ""


def _cell(seeds: Sequence) -> str:
    return counted(len(seeds), "seed") if seeds else MISSING
