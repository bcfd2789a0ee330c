"""What the works claim, beside the rows of this repository: the table of README.md, from claims.yaml.

python -m experiments.studies.claims --write
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import hypot
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from numpy import interp

from experiments.harness import page
from experiments.harness.rows import read_lines
from experiments.studies.study import EXPERIMENTS, Study
from experiments.studies.table import Measured, find_crossing, tabulate_seeds

PAGE, CLAIMS = Path(__file__).with_name("README.md"), Path(__file__).with_name("claims.yaml")
MARKS = ("<!-- claims, as claims.py prints them -->", "<!-- end of the claims -->")
SIGMAS, LOST = 1.96, 1.0  # points
LEAST_CLEAR = 0.05  # of p, for an order
YES, NO, UNCLEAR, MISSING = "yes", "**no**", "no clear difference", "no row yet"
Answer = tuple[str, str]
"""What our rows say, and whether in the same direction."""


def rows() -> list[tuple[str, ...]]:
    """The cells of each claim: work, claim, theirs, ours, same direction, why not or what differs."""
    lines = []
    for work, claims in yaml.safe_load(CLAIMS.read_text(encoding="utf-8")).items():
        for claim in claims:
            kind = next(name for name in KINDS if name in claim)
            ours, verdict = KINDS[kind](claim[kind])
            why = f"`{claim[kind]}`" if kind == "missing" and claim[kind].startswith("python ") else ""
            why = why or (claim[kind] if kind == "missing" else claim.get("why", ""))
            lines.append((work, claim["claim"], claim.get("theirs", ""), ours, verdict, why))
    return lines


def _keep_more(spec: Mapping[str, Any]) -> Answer:
    """Whether the first row keeps more on the held-out part, with the two networks' standard errors as independent."""
    text, difference, error = _difference(spec)
    return text, UNCLEAR if abs(difference) <= error else YES if difference > 0 else NO


def _keep_as_much(spec: Mapping[str, Any]) -> Answer:
    """Whether the first row keeps at most `LOST` less: the whole interval, as noise alone shows no equality."""
    text, difference, error = _difference(spec)
    return text, YES if difference - error >= -LOST else NO if difference + error < 0 else UNCLEAR


def _difference(spec: Mapping[str, Any]) -> tuple[str, float, float]:
    """(text, points, half of the 95 % interval) of the first row minus the second."""
    both = [_row(spec, place) for place in spec["rows"]]
    names = ["val_dense" if line["pattern"] == "dense" else "val_masked" for (line, *_) in both]
    values = [mean(float(line[name]) for line in lines) for lines, name in zip(both, names)]
    error = SIGMAS * hypot(*(_standard_error(value, lines[0]) for value, lines in zip(values, both)))
    difference = 100 * (values[0] - values[1])
    return f"{difference:+.2f} ± {error:.2f}, {spec['network']}", difference, error


def _standard_error(value: float, line: Mapping[str, str]) -> float:
    """Points, on held-out rows: of a share, or of another metric as on test."""
    samples = float(line["val_evaluated_samples"])
    if line["metric_name"] == "accuracy":
        return 100 * float(value * (1 - value) / samples) ** 0.5
    return 100 * float(line["masked_standard_error"]) * (float(line["evaluated_samples"]) / samples) ** 0.5


def _row(spec: Mapping[str, Any], place: Sequence[str]) -> list[dict[str, str]]:
    """The lines of a row that count, by seed."""
    table, row, column = place
    if row == "dense":
        lines = read_lines(Study.read(spec["study"]).points_file)
        return [line for line in lines if line["network"] == spec["network"] and line["row"] == row]
    return list(
        _find_cells(spec, lambda one: (one.cell.table, one.cell.row, one.cell.column) == (table, row, column))[
            0
        ].of_seed.values()
    )


def _find_cells(spec: Mapping[str, Any], belongs: Callable[[Measured], bool]) -> list[Measured]:
    cells = [
        one for one in _cells(spec["study"]) if one.cell.network == spec["network"] and belongs(one) and one.of_seed
    ]
    if not cells:
        raise ValueError(f"no rows of {spec}")
    return cells


@cache
def _cells(study: str) -> list[Measured]:
    return tabulate_seeds(Study.read(study))


def _order(spec: Mapping[str, Any]) -> Answer:
    from scipy.stats import kendalltau

    cells = _find_cells(
        spec, lambda one: one.cell.column == spec["column"] and isinstance(one.cell.source, int | float)
    )
    theirs = [one.cell.source for one in cells]
    (tau, p), (on_test, _) = (
        kendalltau(theirs, [mean(one.values(name)) for one in cells]) for name in ("val_masked", "masked")
    )
    text = f"τ = {tau:.2f} (p = {p:.2g}) on val, {on_test:.2f} on test"
    return text, (YES if tau > 0 else NO) if p < LEAST_CLEAR else UNCLEAR


def _best(spec: Mapping[str, Any]) -> Answer:
    """The largest value among rows, and on which side of a limit it lies."""
    lines = [line for line in read_lines(EXPERIMENTS / spec["file"]) if _matches(line, spec["where"])]
    name, over = spec.get("value", "speedup"), spec.get("over")
    values = [float(line[name]) / (float(line[over]) if over else 1.0) for line in lines if line[name]]
    if not values:
        raise ValueError(f"no rows of {spec}")
    value, unit = max(values), "" if name == "roofline_fraction" else "×"
    holds = value > spec["above"] if "above" in spec else value < spec["below"]
    most = f", best of {len(values)}, worst {min(values):.2f}{unit}" if len(values) > 1 else ""
    return f"{value:.2f}{unit}{most}, {Path(spec['file']).parent}", YES if holds else NO


def _ratio(spec: Mapping[str, Any]) -> Answer:
    """The best of the first rows over the best of the second."""
    first, second = (
        max(float(line[spec["column"]]) for line in read_lines(EXPERIMENTS / spec["file"]) if _matches(line, where))
        for where in spec["rows"]
    )
    return f"{first:.2f}× against {second:.2f}×, {Path(spec['file']).parent}", YES if first > second else NO


def _matches(line: Mapping[str, str], where: Mapping[str, str]) -> bool:
    """Whether each column has its value, or a number of at least that after >=."""
    return all(
        bool(line[name]) and float(line[name]) >= float(value[2:]) if value.startswith(">=") else line[name] == value
        for name, value in where.items()
    )


def _compare_crossings(spec: Mapping[str, Any]) -> Answer:
    """Whether the first row loses a point on the held-out part at a higher sparsity than the second: halfway between the two, it
    loses less, with the networks' standard errors as independent.
    """
    rows = [
        _find_cells(spec, lambda one, row=row: (one.cell.table, one.cell.row) == (spec["table"], row))
        for row in spec["rows"]
    ]
    crossings = [find_crossing(of_row, LOST, "val_masked", "val_dense") for of_row in rows]
    between, losses, errors = mean(level for level, _ in crossings), [], []
    for lines in ([one.first for one in of_row] for of_row in rows):
        levels = [100 * float(line["sparsity_achieved"]) for line in lines]
        lost = [100 * (float(line["val_dense"]) - float(line["val_masked"])) for line in lines]
        losses.append(interp(between, levels, lost))
        nearest = min(lines, key=lambda line: abs(100 * float(line["sparsity_achieved"]) - between))
        errors.append(_standard_error(float(nearest["val_masked"]), nearest))
    difference, error = losses[1] - losses[0], SIGMAS * hypot(*errors)
    texts = [f"{side} {value:.1f} %".strip() for value, side in crossings]
    text = f"{texts[0]} against {texts[1]}, {difference:+.2f} ± {error:.2f} between, {spec['network']}"
    return text, UNCLEAR if abs(difference) <= error else YES if difference > 0 else NO


KINDS: dict[str, Callable[[Any], Answer]] = {
    "more": _keep_more,
    "equal": _keep_as_much,
    "order": _order,
    "best": _best,
    "ratio": _ratio,
    "crossing": _compare_crossings,
    "missing": lambda _: ("", MISSING),
}


def table() -> Iterator[str]:
    """Lines of Markdown: the number of claims of each verdict, and all claims."""
    lines = rows()
    verdicts = (YES, NO, UNCLEAR, MISSING)
    counts = [sum(line[4] == verdict for line in lines) for verdict in verdicts]
    yield from (*page.table(("claims", *verdicts), [(len(lines), *counts)]), "")
    yield from page.table(("work", "claim", "theirs", "ours", "same direction", "why not, or what differs"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into the page")
    arguments = parser.parse_args()
    text = "\n".join(table())
    print(text)
    if arguments.write:
        page.fill(PAGE, MARKS, text)


if __name__ == "__main__":
    main()
