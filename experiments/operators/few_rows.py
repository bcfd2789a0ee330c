"""Tables of the benchmark for few rows of X, with the patterns' own masks, from the results of few_rows.plan.

    python -m experiments.operators.few_rows FILE

Per kernel and M: the speedup over the fastest dense product of the same process, and the share of the attainable speed, a bound
of bytes at the copy rate of the same run plus 2.2 µs for a launch.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from pathlib import Path

from sparsefront_kernels.bench.rows import read_rows

LAUNCH_US = 2.2
SMALLEST_OF_SHARE = 4096 * 4096  # number of weights; smaller products are all launch time
NMSPARSE = "up to 5.2 (A100, fp32, over the best of cuBLAS, cuSPARSE and Sputnik)"  # matrix-vector products, the paper's slides


def tables(rows: Sequence[dict[str, str]]) -> list[str]:
    """Markdown lines: a table of kernels by M and, if measured, one of n:m matrix-vector products."""
    right = [row for row in rows if row["latency_us"] and row["family"] != "dense"]
    return [*_by_m(right), *_vectors([row for row in right if row["m"] == "1" and row["family"] == "n_m"])]


def attainable_share(row: dict[str, str]) -> float:
    """Share of the attainable speed in one row of the benchmark."""
    latency = float(row["latency_us"])
    return float(row["roofline_fraction"]) + LAUNCH_US / latency


def _by_m(rows: Sequence[dict[str, str]]) -> list[str]:
    rows_by_key: dict[tuple[str, str, int], dict[float, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["dtype"] == "fp16":
            key = row["kernel"], row["granularity"], int(row["m"])
            rows_by_key[key][float(row["asked_sparsity"])].append(row)
    lines = [
        "| kernel, granularity | M | (K, N) | over dense | share of the attainable |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (kernel, granularity, m), by_sparsity in sorted(rows_by_key.items()):
        each = [by_sparsity[sparsity] for sparsity in sorted(by_sparsity)]
        speedups = " / ".join(f"{_mean([float(row['speedup']) for row in some]):.2f}" for some in each)
        large = [[row for row in some if int(row["k"]) * int(row["n"]) >= SMALLEST_OF_SHARE] for some in each]
        shares = " / ".join(f"{_mean([attainable_share(row) for row in some]):.2f}" for some in large if some)
        lines.append(f"| `{kernel}`, {granularity} | {m} | {len(each[0])} | {speedups} | {shares} |")
    return lines


def _vectors(rows: Sequence[dict[str, str]]) -> list[str]:
    if not rows:
        return []
    fastest: dict[tuple[str, str, str], float] = {}
    for row in rows:
        key = f"{row['k']} → {row['n']}", row["asked_sparsity"], row["dtype"]
        fastest[key] = max(fastest.get(key, 0.0), float(row["speedup"]))
    dtypes = sorted({dtype for _, _, dtype in fastest})
    lines = ["", f"| n:m, one row | sparsity | {' | '.join(dtypes)} |", f"| --- | --- |{' --- |' * len(dtypes)}"]
    for shape, sparsity in dict.fromkeys((shape, sparsity) for shape, sparsity, _ in fastest):
        cells = (fastest.get((shape, sparsity, dtype)) for dtype in dtypes)
        lines.append(
            f"| {shape} | {sparsity} | {' | '.join('' if cell is None else f'{cell:.2f}' for cell in cells)} |"
        )
    return [*lines, f"| nmSPARSE's own | | {NMSPARSE} |"]


def _mean(values: Sequence[float]) -> float:
    return prod(values) ** (1 / len(values))


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        prog="python -m experiments.operators.few_rows", description=__doc__.splitlines()[0]
    )
    options.add_argument("file", type=Path, help="rows of the operator benchmark")
    print("\n".join(tables(read_rows(options.parse_args().file))))
