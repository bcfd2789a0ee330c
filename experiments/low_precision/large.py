"""BERT-large and ViT-L with random weights: blocks in fp8 beside dense fp8 and the fastest dense fp16, all timed in turn.

    python -m experiments.low_precision.large --out results/low_precision/large.csv [--only bert_large,0.75] [--profile]

Networks, masks and options are those of experiments/end_to_end. A row is written as soon as it is measured and never measured
again. --dry-run swaps and compares, on a CPU too.
"""

import copy
import sys
from pathlib import Path
from typing import Any

from experiments.end_to_end.networks import outputs_of
from experiments.end_to_end.points import Point, Setting
from experiments.end_to_end.study import Options, calls_of, log, main, report_cells
from experiments.harness.rows import append_line, where_and_when
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.measure.correctness import LOW_PRECISION_ERROR_LIMIT, relative_error
from sparsefront.measure.speedup import speedup_of
from sparsefront.measure.timers import summarize

PRECISION = "fp8"
BLOCKS, SPARSITIES = ("64x128", "128x128"), (0.75, 0.5, 0.9)
SIZES = (("bert_large", 32, 384), ("vit_l_16", 256, None))


def all_points() -> list[Point]:
    """What was asked for first."""
    return [
        Point(model, batch, length, "fp16", Setting("block_wise", block, sparsity))
        for model, batch, length in SIZES
        for sparsity in SPARSITIES
        for block in BLOCKS
    ]


def measure(point: Point, options: Options) -> None:
    """Add the row of a point.

    Raises:
        RuntimeError: a network in fp8 is further from the one in 16 bits than quantization takes it.
    """
    pruned = options.prepare(point)
    report = options.swap(pruned, "auto", precision=PRECISION)
    low = make_dense_graph(copy.deepcopy(pruned.dense), pruned.inputs, PRECISION)
    dense_outputs = outputs_of(pruned.body, pruned.dense, pruned.inputs)
    errors, logits = {}, {}
    for side, net, expected in (("sparse", pruned.net, pruned.masked_outputs), ("dense_low", low, dense_outputs)):
        outputs = outputs_of(pruned.body, net, pruned.inputs)
        # of random weights, logits are sums that nearly cancel, so that no limit holds for them
        errors[side], logits[side] = map(relative_error, outputs, expected)
        if not errors[side] <= LOW_PRECISION_ERROR_LIMIT:
            raise RuntimeError(f"{side}: relative error {errors[side]:.1e} against the same weights in 16 bits")
    log.info("%s: kernels %s, errors %s, of logits %s", point, report.kernels, errors, logits)
    if not options.timed:
        return
    comparison = options.benchmark(pruned, low={PRECISION: low})
    timed = comparison.timed
    assert timed.dense.low is not None  # it was given
    taken = timed.dense.samples_ms | timed.samples_ms
    executions = {"dense": timed.dense.execution, "dense_low": timed.dense.low.execution, "sparse": timed.execution}
    row: dict[str, Any] = point.columns | {"precision": PRECISION}
    row |= {f"latency_{side}_ms": summarize(sum(taken[side], [])).median_ms for side in executions}
    row |= {f"{side}_variant": one.name for side, one in executions.items()}
    row |= timed.speedup.to_json()
    over_low = speedup_of(taken["dense_low"], taken["sparse"]).to_json()
    row |= {name.replace("speedup", "speedup_low_precision"): value for name, value in over_low.items()}
    row |= {f"{side}_relative_error": error for side, error in errors.items()}
    row |= {f"{side}_logits_relative_error": error for side, error in logits.items()}
    row |= {"kernels": report_cells(report)["kernels"], **where_and_when()}
    append_line(options.file, {name: f"{cell:.5g}" if isinstance(cell, float) else cell for name, cell in row.items()})
    options.profile_calls(point, calls_of(comparison) | {"dense_low": executions["dense_low"].fastest.call})
    log.info("%s: %s", point, {name: row[name] for name in ("speedup", "speedup_low_precision")})


if __name__ == "__main__":
    sys.exit(main(measure, all_points(), __doc__, Path("results/low_precision/large.csv")))
