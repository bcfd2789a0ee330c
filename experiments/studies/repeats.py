"""How far a line lies from the same one of another dense network, trained anew: other differences have to exceed that."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from experiments.studies import definition, rows
from experiments.studies.definition import Study
from experiments.studies.rows import Line
from experiments.studies.work import DIGEST

METRICS = {"val": "val_masked", "test": "masked"}


def repeat_lines(study: Study, folder: Path) -> Iterator[str]:
    """A table with a line for each network that has points of several dense networks of one seed, in points; none without any."""
    pairs: dict[str, list[tuple[Line, Line]]] = {}
    for (point, _), lines in rows.repeated_lines(study, folder / rows.FILE).items():
        *others, counted = lines
        told = [(line, counted) for line in others if line[DIGEST] != counted[DIGEST] and _measured(line, counted)]
        if told:
            pairs.setdefault(point.network, []).extend(told)
    if pairs:
        yield f"| network | pairs | {' | '.join(f'{split}: median | at most' for split in METRICS)} |"
        yield "|" + "---|" * (2 + 2 * len(METRICS))
    for name in study.networks:
        if found := pairs.get(name):
            apart = [_apart(found, metric) for metric in METRICS.values()]
            yield f"| {definition.networks()[name].title} | {len(found)} | {' | '.join(apart)} |"


def _measured(*lines: Line) -> bool:
    return all(line[metric] for line in lines for metric in METRICS.values())


def _apart(pairs: list[tuple[Line, Line]], metric: str) -> str:
    points = [100 * abs(float(one[metric]) - float(other[metric])) for one, other in pairs]
    return f"{median(points):.2f} | {max(points):.2f}"
