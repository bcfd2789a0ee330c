"""Later measurements into the operator benchmark's CSV: a product that was measured again keeps its newest row alone.

    python -m experiments.operators.merge h200.csv later.csv [later.csv ...]

Rows of the later files replace those of the first file that are of the same product, kernel and layout; the others are added at
its end. Wrong products are no exception, so that a fault is not covered by an older row.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsefront_kernels.bench.row import KEY, read_rows, write_texts


def merged(rows: Iterable[dict[str, str]], later: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Rows in the order in which their products were first measured, each with what was measured last."""
    newest = {}
    for row in (*rows, *later):
        newest[_key(row)] = row
    return list(newest.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    """What makes two rows measurements of one thing: the sparsity that was asked for, which random masks miss by a little."""
    named = {name: row[name] for name in KEY} | {"sparsity": row["asked_sparsity"] or row["sparsity"]}
    return (*named.values(), row["gpu"])


def main(arguments: Sequence[str]) -> int:
    """Rewrite the first file; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, help="what is kept up to date")
    parser.add_argument("later", type=Path, nargs="+", help="what the benchmark wrote since, the newest last")
    asked = parser.parse_args(arguments)
    before = read_rows(asked.csv)
    later = [row for path in asked.later for row in read_rows(path)]
    after = merged(before, later)
    write_texts(asked.csv, after)
    print(f"{asked.csv}: {len(before)} rows before, {len(later)} measured since, {len(after)} now")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
