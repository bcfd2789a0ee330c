"""Command line of the operator benchmark.

python -m sparsefront_kernels.bench --m 4096 --sparsity 0.5 0.9 --granularity 128 --output rows.csv
python -m sparsefront_kernels.bench --compare before.csv after.csv
"""

import argparse
import subprocess
import sys
from pathlib import Path

from sparsefront_kernels.bench.compare import report
from sparsefront_kernels.bench.row import read_rows, write_rows
from sparsefront_kernels.bench.shapes import chosen_shapes
from sparsefront_kernels.bench.weights import DISTRIBUTIONS

PEER_NAMES = ("cusparselt", "triton_bsr", "cusparse_csr")


def parser() -> argparse.ArgumentParser:
    """All options; every filter takes several values."""
    options = argparse.ArgumentParser(prog="python -m sparsefront_kernels.bench", description=__doc__.splitlines()[0])
    options.add_argument("--shapes", nargs="+", default=[], help="names of shapes, such as M17")
    for size in ("m", "k", "n"):
        options.add_argument(f"--{size}", nargs="+", type=int, default=[], help=f"only shapes with this {size}")
    options.add_argument("--dtype", nargs="+", default=["fp16"], choices=["fp16", "bf16"])
    options.add_argument("--sparsity", nargs="+", type=_fraction, default=[0.5, 0.75, 0.9])
    options.add_argument("--granularity", nargs="+", type=int, default=[128], help="outputs that share their inputs")
    options.add_argument("--distribution", nargs="+", default=["equal"], choices=sorted(DISTRIBUTIONS))
    options.add_argument("--peers", nargs="*", default=list(PEER_NAMES), choices=PEER_NAMES, help="what runs beside")
    options.add_argument("--kernels", nargs="+", default=[], help="only these of our kernels")
    options.add_argument("--tune", action="store_true", help="tune before timing, and keep what was found")
    options.add_argument("--samples", type=int, default=20, help="graph replays per measurement")
    options.add_argument("--commit", default=None, help="of the code, for the rows; asked of git where not given")
    options.add_argument("--output", type=Path, help="CSV to write")
    options.add_argument("--tuned-output", type=Path, help="with --tune: JSON to write the launch parameters to")
    options.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="two CSVs; runs nothing")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run or compare; the exit code is 1 where a comparison finds something slower, wrong or gone."""
    asked = parser().parse_args(arguments)
    if asked.compare:
        text, worse = report(*(read_rows(path) for path in asked.compare))
        print(text)
        return int(worse)
    return _measure(asked)


def _measure(asked: argparse.Namespace) -> int:
    shapes = tuple(chosen_shapes(asked.shapes, m=asked.m, k=asked.k, n=asked.n))
    # what measures needs a GPU's libraries, what compares does not
    from sparsefront_kernels.bench.run import Plan, run
    from sparsefront_kernels.bench.summary import summary

    plan = Plan(
        shapes=shapes,
        dtypes=tuple(asked.dtype),
        sparsities=tuple(asked.sparsity),
        granularities=tuple(asked.granularity),
        distributions=tuple(asked.distribution),
        peers=tuple(asked.peers),
        kernels=tuple(asked.kernels),
        tune=asked.tune,
        samples=asked.samples,
        commit=_commit() if asked.commit is None else asked.commit,
    )
    rows = run(plan, say=lambda line: print(line, file=sys.stderr, flush=True))
    if asked.output:
        write_rows(asked.output, rows)
    if asked.tune:
        _save_tuned(asked.tuned_output)
    print(summary(rows))
    return int(not all(row.correct for row in rows))


def _save_tuned(path: Path | None) -> None:
    import torch

    from sparsefront_kernels.gathered import tuning
    from sparsefront_kernels.tuning import tuned_kernel

    tuned_kernel(torch.cuda.get_device_name(), tuning.KERNEL, tuning.VERSION).save(path)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"sparsity is a fraction of zeros in [0, 1), not {text}")
    return value


def _commit() -> str:
    """The commit of the code that runs, or nothing where git does not know."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
