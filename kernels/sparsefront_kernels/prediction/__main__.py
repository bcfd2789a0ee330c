"""From a results file of the benchmark to the table that predictions read.

python -m sparsefront_kernels.prediction experiments/operators/h200.csv
"""

import argparse
import sys
from pathlib import Path

from sparsefront_kernels.bench.row import read_rows
from sparsefront_kernels.prediction.distill import distilled
from sparsefront_kernels.prediction.table import SHIPPED, user_file
from sparsefront_kernels.tuning.store import file_name


def main(arguments: list[str] | None = None) -> int:
    """Write the table; returns the exit status: 0, or 1 with one message on stderr."""
    asked = _parser().parse_args(arguments)
    try:
        table = distilled(read_rows(asked.csv))
        path = SHIPPED / file_name(table.gpu) if asked.ship else user_file(table.gpu)
        print(f"{table.save(path)}: {len(table.measured)} products")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    description = __doc__.splitlines()[0]
    options = argparse.ArgumentParser(prog="python -m sparsefront_kernels.prediction", description=description)
    options.add_argument("csv", type=Path, help="what `python -m sparsefront_kernels.bench` wrote, on one GPU model")
    options.add_argument("--ship", action="store_true", help="write into the package and not into one's own cache")
    return options


if __name__ == "__main__":
    sys.exit(main())
