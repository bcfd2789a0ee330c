"""Products of the operator benchmark on a study's page: what `products.plan` measured."""

import csv
from collections.abc import Iterator
from pathlib import Path

PLAN, FILE = "products.plan", "products.csv"


def product_lines(folder: Path) -> Iterator[str]:
    """A table of shape by pattern: the fastest right kernel at each sparsity, and the first that is faster than dense."""
    path = folder / FILE
    if not path.exists():
        yield "No product is timed yet."
        return
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["speedup"] and line["family"] != "dense"]
    fastest: dict[tuple[str, str], dict[float, float]] = {}
    for line in lines:
        key = (line["shape"], f"{line['pattern']} {line['granularity']}")
        level = round(float(line["asked_sparsity"] or line["sparsity"]), 3)
        of_key = fastest.setdefault(key, {})
        of_key[level] = max(of_key.get(level, 0.0), float(line["speedup"]))
    levels = sorted({level for found in fastest.values() for level in found})
    head = ["product", "pattern", *(f"{100 * level:g} %" for level in levels), "faster than dense from"]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for (shape, pattern), found in sorted(fastest.items()):
        critical = next((f"{100 * level:g} %" for level in levels if found.get(level, 0) > 1), "nowhere here")
        speedups = [f"{found[level]:.2f}" if level in found else "" for level in levels]
        yield f"| {shape} | {pattern} | {' | '.join(speedups)} | {critical} |"
    places = sorted({f"{line['gpu']}, torch {line['torch']}, commit {line['commit']}" for line in lines})
    yield ""
    yield f"Speedup over the fastest dense product of the same process; {'; '.join(places)}."
