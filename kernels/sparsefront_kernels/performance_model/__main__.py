"""The performance model against a results file of the benchmark.

python -m sparsefront_kernels.performance_model experiments/operators/h200.csv                print its errors
python -m sparsefront_kernels.performance_model experiments/operators/h200.csv --fit --ship   fit its constants first
python -m sparsefront_kernels.performance_model experiments/operators/h200.csv --table --ship store them for interpolation
python -m sparsefront_kernels.performance_model experiments/operators/h200.csv --write        fill the column predicted_us
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsefront_kernels.bench.rows import read_rows, write_texts
from sparsefront_kernels.performance_model import latency_table
from sparsefront_kernels.performance_model.fit import DISTRIBUTIONS, Errors, fitted, product_of, rates_of, samples_of
from sparsefront_kernels.performance_model.kernel_latency import predict_with
from sparsefront_kernels.performance_model.rates import SHIPPED, DeviceRates, device_rates, user_file
from sparsefront_kernels.registry import names
from sparsefront_kernels.tuning.store import file_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors; returns the exit status: 0, or 1 with one message on stderr."""
    options = _parser().parse_args(arguments)
    try:
        rows = read_rows(options.csv)
        if options.table:
            table = latency_table.distilled(rows, names())
            path = latency_table.SHIPPED / file_name(table.gpu) if options.ship else latency_table.user_file(table.gpu)
            print(f"{table.save(path)}: {len(table.measured)} products")
            if not options.fit and device_rates(table.gpu) is None:
                return 0
        rates = _rates(rows, options)
        filled = [row | {"predicted_us": _predicted(row, rates)} for row in rows]
        if options.write:
            write_texts(options.csv, filled)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(error_table(filled, rates))
    return 0


def error_table(rows: Sequence[dict[str, str]], rates: DeviceRates) -> str:
    """Median and 90th percentile of |predicted / measured - 1| by kernel and dtype, and the held-out errors of each fit."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["predicted_us"] and row["latency_us"]:
            groups[row["kernel"], row["dtype"]].append(float(row["predicted_us"]) / float(row["latency_us"]))
    lines = ["| kernel | dtype | rows | median error | p90 | bias |", "| --- | --- | --- | --- | --- | --- |"]
    for (kernel, dtype), ratios in sorted(groups.items()):
        errors = Errors.of(ratios)
        lines.append(
            f"| {kernel} | {dtype} | {errors.rows} | {errors.median:.1%} | {errors.p90:.1%} | {errors.bias:.2f} |"
        )
    held = [
        f"held out, {key}: median {errors['held_out_median']:.1%}, p90 {errors['held_out_p90']:.1%}"
        for key, errors in rates.errors.items()
        if "held_out_median" in errors
    ]
    return "\n".join([*lines, "", *held])


def _rates(rows: Sequence[dict[str, str]], options: argparse.Namespace) -> DeviceRates:
    gpus = sorted({row["gpu"] for row in rows})
    if len(gpus) != 1:
        raise ValueError(f"one GPU model at a time; the rows are of {', '.join(gpus) or 'none'}")
    known = device_rates(gpus[0])
    if not options.fit:
        if known is None:
            raise ValueError(f"no rates of {gpus[0]} are known; --fit fits them")
        return known
    num_sms = options.num_sms or (known and known.num_sms)
    if not num_sms:
        raise ValueError(f"the multiprocessors of {gpus[0]} are not known; set --num-sms")
    made_with = {name: ", ".join(sorted({row[name] for row in rows})) for name in latency_table.MADE_WITH}
    rates = rates_of(rows, gpu=gpus[0], num_sms=num_sms, made_with={"source": options.csv.name, **made_with})
    if known is not None:  # keep what these rows do not cover
        rates = replace(
            rates, dense_tflops=known.dense_tflops | rates.dense_tflops, constants=known.constants, errors=known.errors
        )
    rates = fitted(samples_of(rows), rates)
    path = rates.save(SHIPPED / file_name(rates.gpu) if options.ship else user_file(rates.gpu))
    device_rates.cache_clear()
    print(f"{path}: constants of {', '.join(sorted(rates.constants))}")
    return rates


def _predicted(row: dict[str, str], rates: DeviceRates) -> str:
    """As text; empty without a prediction, as for masks of a pattern, whose tiles are not modeled."""
    if row["distribution"] not in DISTRIBUTIONS:
        return ""
    predicted = predict_with(product_of(row), row["kernel"], rates)
    return "" if predicted is None else f"{predicted.latency_us:.6g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront_kernels.performance_model",
        description="Errors of the performance model against measurements.",
    )
    parser.add_argument("csv", type=Path, help="results of `python -m sparsefront_kernels.bench` on one GPU model")
    parser.add_argument("--fit", action="store_true", help="fit rates and constants to the file, and store them")
    parser.add_argument("--table", action="store_true", help="store the times of row-major products as a table")
    parser.add_argument("--ship", action="store_true", help="store both in the package instead of the cache")
    parser.add_argument("--num-sms", type=int, help="multiprocessors of a GPU that was never fitted")
    parser.add_argument("--write", action="store_true", help="write the predictions into the file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
