"""BERT-large and ViT-L with random weights: blocks in fp8 beside dense fp8 and the fastest dense fp16, all timed in turn.

    python -m experiments.low_precision.large --out results/low_precision/large.csv [--only bert_large,0.75] [--profile]

Networks, masks and the dense baseline are those of experiments/end_to_end, and so are the options. A row is written as soon as it
is measured and never measured again. --dry-run swaps and compares, on a CPU too.
"""

import copy
import logging
import sys
from pathlib import Path
from typing import Any

from experiments.end_to_end.networks import outputs_of
from experiments.end_to_end.points import Point, Setting
from experiments.end_to_end.session import Rows, Session, free_memory, kernels_text
from experiments.end_to_end.sparse import WrongOutputs, masked_net, swapped_net
from experiments.end_to_end.study import arguments, left_over, log_to_terminal, many_networks, options_of, select
from experiments.harness import runs
from experiments.harness.measure import timed_in_turn
from experiments.harness.rows import where_and_when
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.inference.precision import Precision
from sparsefront.measure.correctness import LOW_PRECISION_ERROR_LIMIT, relative_error
from sparsefront.measure.end_to_end import find_execution
from sparsefront.measure.speedup import speedup_of
from sparsefront.measure.timers import summarize

log = logging.getLogger(__name__)
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


def measure(session: Session, point: Point) -> None:
    """Add the row of a point.

    Raises:
        WrongOutputs: a network in fp8 is further from the one in 16 bits than quantisation takes it.
    """
    dense, masks = session.dense(point), session.masks(point)
    body, inputs = dense.network.body, dense.inputs
    masked = masked_net(dense, masks)
    net, report = swapped_net(dense, masked, masks, KernelChoice(), precision=Precision(PRECISION))
    low = make_dense_graph(copy.deepcopy(dense.net), inputs, PRECISION)
    errors, logits = {}, {}
    for side, one, other in (("sparse", net, masked), ("dense_low", low, dense.net)):
        states, ends = zip(*(outputs_of(body, made, inputs) for made in (one, other)), strict=True)
        errors[side] = relative_error(*states)
        logits[side] = relative_error(*ends)  # of random weights: two sums that nearly cancel, so that no limit holds
        if not errors[side] <= LOW_PRECISION_ERROR_LIMIT:
            raise WrongOutputs(f"{side}: relative error {errors[side]:.1e} against the same weights in 16 bits")
    del masked
    log.info("%s: kernels %s, errors %s, of logits %s", point, report.kernels, errors, logits)
    if not session.options.timed:
        return
    settings = session.options.sparse
    executions = {"dense_low": find_execution(low, inputs, settings), "sparse": find_execution(net, inputs, settings)}
    calls = {"dense": dense.call} | {side: one.fastest.call for side, one in executions.items()}
    taken = timed_in_turn(calls, settings)
    row: dict[str, Any] = point.columns | {"precision": PRECISION}
    row |= {f"latency_{side}_ms": summarize(sum(samples, [])).median_ms for side, samples in taken.items()}
    row |= {"dense_variant": dense.variant} | {f"{side}_variant": one.name for side, one in executions.items()}
    row |= speedup_of(taken["dense"], taken["sparse"]).to_json()
    over_low = speedup_of(taken["dense_low"], taken["sparse"]).to_json()
    row |= {name.replace("speedup", "speedup_low_precision"): value for name, value in over_low.items()}
    row |= {f"{side}_relative_error": error for side, error in errors.items()}
    row |= {f"{side}_logits_relative_error": error for side, error in logits.items()}
    ways = report.fusion.variants_ms.values() if report.fusion else ()
    row |= {"block_variants_ms": " ".join(f"{name}={time:.3f}" for times in ways for name, time in times.items())}
    row |= {"kernels": kernels_text(report.kernels), **where_and_when()}
    session.rows.add({name: f"{value:.5g}" if isinstance(value, float) else str(value) for name, value in row.items()})
    if session.options.profile:
        for side in calls:
            session.profile(point, side, calls[side])
    log.info("%s: %s", point, {name: row[name] for name in ("speedup", "speedup_low_precision")})


def main() -> int:
    """The exit status."""
    parser = arguments()
    parser.description = __doc__.splitlines()[0]
    parser.set_defaults(out=Path("results/low_precision/large.csv"))
    asked = parser.parse_args()
    log_to_terminal()
    session, ends_at = Session(Rows(asked.out), options_of(asked)), runs.ends_at(asked.minutes)
    status = 0
    with many_networks():
        for point in left_over(select(all_points(), asked.only), session.rows):
            if runs.over(ends_at):
                break
            try:
                measure(session, point)
            except (RuntimeError, ValueError) as error:  # one row must not take the others with it
                log.error("%s failed: %s", point, error)
                status = 1
            free_memory()
    return status


if __name__ == "__main__":
    sys.exit(main())
