"""Products of the operator benchmark on a study's page: what `products.plan` measured."""

import csv
from collections.abc import Iterator
from pathlib import Path

PLAN, FILE = "products.plan", "products.csv"
OWN_MASKS = "pattern"  # as `distribution`: made by the pattern itself
NEAR = 0.005  # a sparsity so far from what was asked for is told


def product_lines(folder: Path) -> Iterator[str]:
    """A table of shape by pattern: the fastest right kernel at each sparsity, and the sparsity from which on all that were
    measured are faster than dense.

    What runs on other masks than the pattern's, as a peer may, has lines of its own.
    """
    lines = _timed(folder)
    if not lines:
        yield "No product is timed yet."
        return
    fastest: dict[tuple[str, str], dict[float, float]] = {}
    notes: dict[tuple[str, str, float], str] = {}
    for line in lines:
        key = (line["shape"], _label(line))
        has = float(line["sparsity"])
        level = round(float(line["asked_sparsity"] or has), 3)
        of_key = fastest.setdefault(key, {})
        of_key[level] = max(of_key.get(level, 0.0), float(line["speedup"]))
        if abs(has - level) > NEAR:
            notes[*key, level] = f" (has {100 * has:.3g} %)"
    levels = sorted({level for found in fastest.values() for level in found})
    head = ["product", "pattern", *(f"{100 * level:g} %" for level in levels), "faster than dense from"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for (shape, pattern), found in sorted(fastest.items()):
        slower = max((level for level, speedup in found.items() if speedup <= 1), default=0)
        critical = next((f"{100 * level:g} %" for level in sorted(found) if level > slower), "nowhere here")
        speedups = [
            f"{found[level]:.2f}{notes.get((shape, pattern, level), '')}" if level in found else "" for level in levels
        ]
        yield f"| {shape} | {pattern} | {' | '.join(speedups)} | {critical} |"
    yield from ("", "Speedup over the fastest dense product of the same process.")


def product_places(folder: Path) -> str:
    """GPU, version, dtype and day of the products; "" where none is timed."""
    return "; ".join(sorted({"{gpu}, torch {torch}, {dtype}, {date}".format_map(line) for line in _timed(folder)}))


def _timed(folder: Path) -> list[dict[str, str]]:
    path = folder / FILE
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [line for line in csv.DictReader(file) if line["speedup"] and line["family"] != "dense"]


def _label(line: dict[str, str]) -> str:
    name = f"{line['pattern']} {line['granularity']}"
    if line["distribution"] in ("", OWN_MASKS):
        return name
    return f"{name}, {line['kernel']} on random masks ({line['distribution']})"
