"""Latencies of one run at several sizes, as fields of the result: the curve, and the evaluation set's own batches."""

import logging
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.config.experiment import Experiment
from sparsefront.measure.end_to_end import time_alone, time_pair, time_size
from sparsefront.measure.execution_mode import NothingRuns
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import dataset_size_text, size_text
from sparsefront.measure.speedup import SPEEDUP_OVER, latency_over_batches, speedup_of
from sparsefront.measure.timers import LatencySummary, summarise
from sparsefront.stages.bench import EvalContext
from sparsefront.tasks.decoding import DecoderStep, SourceEncoder, TranslationNetwork

log = logging.getLogger(__name__)
Samples = dict[str, list[list[float]]]  # network -> milliseconds, one list per repeat
Ways = dict[str, tuple[nn.Module, Execution]]
"""dense, dense_low or sparse -> the network, and the fastest way in which it ran."""
ON_THE_CURVE = (
    "batch_size",
    "sequence_length",
    "latency_dense_ms",
    "latency_dense_p20_ms",
    "latency_dense_p80_ms",
    "latency_sparse_ms",
    "latency_sparse_p20_ms",
    "latency_sparse_p80_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "latency_dense_low_ms",
    "latency_dense_low_p20_ms",
    "latency_dense_low_p80_ms",
    "dense_low_precision",
    "speedup_low_precision",
    "speedup_low_precision_low",
    "speedup_low_precision_high",
    "dense_variant",
    "sparse_variant",
    "fused_dense_latency_ms",
    "gpu_clock_mhz",
)


def latency_curve(
    bench: EvalContext, speed_at: Callable[[EvalContext], tuple[dict[str, Any], Samples]]
) -> tuple[list[dict[str, Any]], Samples]:
    """Every size of the measurement's settings but the first: field `curve` of the result, and its samples.

    A size that the device has no memory for, or that no execution mode can run, is a point without latencies that says so.

    Args:
        bench: of the first size.
        speed_at: group `speed` at another one, with the entries `kernels` and `sparse_flops_share` where kernels run.
    """
    curve, samples = [], {}
    for at in sizes(bench.experiment)[1:]:
        size = dict(zip(("batch_size", "sequence_length"), at, strict=True))
        point, taken = _timed_size(size, lambda at=at: speed_at(bench.at(*at)))
        curve.append(point)
        samples |= {f"{side} {size_text(point)}": values for side, values in taken.items()}
    return curve, samples


def dataset_latency(bench: EvalContext, ways: Ways) -> tuple[dict[str, Any], Samples]:
    """Latency of a batch as the evaluation set has them: fields of group `speed`, and samples. Empty with `lengths=fixed`.

    The batches are those of the evaluation, in the loader's order, each padded to its own longest row rounded up to 16 tokens.
    The same size occurs many times: each (rows, tokens) is timed once, with all samples and repeats, dense and sparse in turn,
    and weighs as often as it occurs; the last, smaller batch is a size of its own. The latency is the sum over all batches by
    their number. As where a network is served, one network with one choice of kernels runs all sizes: that of the fixed size, in
    the way that was fastest there, for dense and sparse alike. Each size is compiled and recorded by itself.

    Where one size cannot be timed there is no latency, and the size says why.

    Args:
        bench: of the fixed size.
        ways: "dense", "dense_low" in a low precision, and "sparse" where kernels run -> the network, and how it ran there.
    """
    settings = bench.experiment.measure
    if settings.lengths == "fixed":
        return {}, {}

    def speed_at(inputs: dict[str, Tensor]) -> tuple[dict[str, Any], Samples]:
        taken = time_size(ways, inputs, settings)
        found: dict[str, Any] = {}
        for side, samples_ms in taken.items():
            found |= latency_fields(side, summarise(sum(samples_ms, [])))
        for side in taken.keys() & SPEEDUP_OVER if "sparse" in taken else ():
            found |= speedup_of(taken[side], taken["sparse"]).to_json(SPEEDUP_OVER[side])
        return found, taken

    lengths, timed, samples = [], [], {}
    for point, batches in bench.of_the_dataset():
        size = {"batch_size": point.batch_size, "sequence_length": point.sequence_length}
        entry, taken = _timed_size(size, lambda point=point: speed_at(point.inputs))
        lengths.append(entry | {"batches": batches})
        timed.append((batches, taken))
        samples |= {f"{side} {dataset_size_text(entry)}": values for side, values in taken.items()}
    whole = all(taken for _, taken in timed)
    return {"dataset_lengths": lengths} | (latency_over_batches(timed) if whole else {}), samples


def part_latency(
    bench: EvalContext, dense: nn.Module, sparse: nn.Module | None = None
) -> tuple[list[dict[str, Any]], Samples]:
    """Parts of a network that translates, each by itself and in its own fastest way: field `parts` of the result, and samples.

    Args:
        bench: of the fixed size.
        sparse: the network with kernels, where there is one.
    """
    settings, parts, samples = bench.experiment.measure, [], {}
    for part in settings.parts:
        inputs = part_inputs(bench, part)
        size = {"batch_size": len(next(iter(inputs.values()))), "sequence_length": part_length(bench, part)}

        def speed(part: str = part, inputs: dict[str, Tensor] = inputs) -> tuple[dict[str, Any], Samples]:
            if sparse is None:
                alone = time_alone(part_of(bench, dense, part), inputs, settings)
                return latency_fields("dense", alone.latency) | {
                    "dense_variant": alone.execution.name
                }, alone.samples_ms
            timed = time_pair(part_of(bench, dense, part), part_of(bench, sparse, part), inputs, settings)
            variants = {"dense_variant": timed.dense.execution.name, "sparse_variant": timed.execution.name}
            both = latency_fields("dense", timed.dense.latency) | latency_fields("sparse", timed.sparse)
            return both | timed.speedup.to_json() | variants, timed.samples_ms

        log.info("measure: latency of the %s, %s", part.replace("_", " "), size_text(size))
        entry, taken = _timed_size(size, speed)
        parts.append({"part": part} | entry)
        samples |= {f"{side} {part} {size_text(entry)}": values for side, values in taken.items()}
    return parts, samples


def part_length(bench: EvalContext, part: str) -> int:
    """Tokens of the source, or those that hypotheses have."""
    length = bench.sequence_length or 1
    return length if part == "encoder" else max(1, length // 2)


def part_inputs(bench: EvalContext, part: str) -> dict[str, Tensor]:
    """Keyword arguments of a part."""
    if part == "encoder":
        return {name: bench.inputs[name] for name in ("source", "source_mask")}
    target, beam = bench.inputs["target"], bench.experiment.dataset.beam
    return {"tokens": target[:, part_length(bench, part) - 1].repeat_interleave(beam)}


def part_of(bench: EvalContext, net: nn.Module, part: str) -> nn.Module:
    """A part of a network that translates, in eval mode."""
    assert isinstance(net, TranslationNetwork)  # as was checked before training
    source, mask = bench.inputs["source"], bench.inputs["source_mask"]
    if part == "encoder":
        return SourceEncoder(net).eval()
    given = bench.inputs["target"][:, : part_length(bench, part)].repeat_interleave(bench.experiment.dataset.beam, 0)
    return DecoderStep(net, source, mask, given).eval()


def latency_fields(side: str, latency: LatencySummary) -> dict[str, float]:
    """Of "dense", "dense_low" or "sparse", as fields of the result."""
    return {
        f"latency_{side}_ms": latency.median_ms,
        f"latency_{side}_p20_ms": latency.p20_ms,
        f"latency_{side}_p80_ms": latency.p80_ms,
    }


def _timed_size(
    size: dict[str, int | None], speed_at: Callable[[], tuple[dict[str, Any], Samples]]
) -> tuple[dict[str, Any], Samples]:
    """An entry of `curve`, or of `dataset_lengths`; without samples and latencies where it cannot be timed."""
    try:
        speed, taken = speed_at()
    except (torch.OutOfMemoryError, NothingRuns) as error:
        why = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
        log.warning("measure: batch %d, length %s: %s", *size.values(), why)
        return size | {"not_measured": why}, {}
    kept = (*ON_THE_CURVE, "kernels", "sparse_flops_share")
    return size | {name: speed[name] for name in kept if name in speed}, taken


def sizes(experiment: Experiment) -> list[tuple[int, int | None]]:
    """(batch size, sequence length) of all points, the result's own first; images have no length."""
    measure = experiment.measure
    lengths = (None,) if experiment.dataset.info.sequence_length is None else measure.sequence_lengths
    return [(batch_size, length) for length, batch_size in product(lengths, measure.batch_sizes)]
