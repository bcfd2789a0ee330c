"""Which cells of a study's grid, pattern with recovery by sparsity, hold how many runs."""

from collections.abc import Sequence

from sparsefront.report.candidates import Candidate

MISSING = "missing"


def measured_cells(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per pattern (with granularity or n:m) and recovery, one column per sparsity; `missing` where nothing was
    measured. Empty where there is no grid.
    """
    sparsities = sorted({candidate.sparsity for candidate in candidates})
    seeds: dict[tuple[str, str], dict[float, set]] = {}
    for candidate in candidates:
        of_line = seeds.setdefault(_line(candidate), {})
        of_line.setdefault(candidate.sparsity, set()).update(candidate.seeds)
    if len(sparsities) < 2 or len(seeds) < 2:
        return []
    return [
        {"pattern": pattern, "recovery": recovery}
        | {f"sparsity {sparsity:g}": _cell(held.get(sparsity, ())) for sparsity in sparsities}
        for (pattern, recovery), held in sorted(seeds.items())
    ]


def _line(candidate: Candidate) -> tuple[str, str]:
    """Without n:m, which follows from the sparsity where it was not chosen."""
    choice = candidate.results[0].choice
    windows = choice.pattern_parameters.get("m")
    parts = (choice.pattern, choice.granularity, None if windows is None else f"m={windows}")
    return " ".join(str(part) for part in parts if part is not None), choice.recovery or "none"


def _cell(seeds: Sequence) -> str:
    return f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}" if seeds else MISSING
