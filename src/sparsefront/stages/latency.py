"""Latencies of a run at several sizes, as fields of the result: the curve, and the evaluation set's own batches."""

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.config.experiment import Experiment
from sparsefront.measure.decode import Prefilled
from sparsefront.measure.end_to_end import DenseTiming, time_alone, time_pair, time_size
from sparsefront.measure.execution_mode import NothingRuns, is_compiled
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import dataset_size_text, size_text
from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import SPEEDUP_OVER, latency_over_batches, speedup_of
from sparsefront.measure.timers import LatencySummary, summarise
from sparsefront.stages.bench import EvalContext
from sparsefront.tasks.decoding import DecoderStep, Decoding, SourceEncoder, TranslationNetwork, WholeTranslation

log = logging.getLogger(__name__)
Samples = dict[str, list[list[float]]]  # network -> milliseconds, one list per repeat
Ways = dict[str, tuple[nn.Module, Execution]]
"""dense, dense_low or sparse -> the network and its fastest execution."""
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
    "cache_length",
    "tokens_per_s_dense",
    "tokens_per_s_sparse",
    "tokens_per_s_dense_low",
    "latency_prefill_dense_ms",
    "latency_prefill_sparse_ms",
)


def latency_curve(
    bench: EvalContext, speed_at: Callable[[EvalContext], tuple[dict[str, Any], Samples]]
) -> tuple[list[dict[str, Any]], Samples]:
    """Measure every configured size but the first: field `curve` of the result, and its samples.

    A size that does not fit in memory, or that no execution mode supports, becomes a point without latencies, with the reason.

    Args:
        bench: context of the first size.
        speed_at: returns group `speed` at another size, with `kernels` and `sparse_flops_share` if kernels run.
    """
    curve, samples = [], {}
    for at in sizes(bench.experiment)[1:]:
        size = dict(zip(("batch_size", "sequence_length"), at, strict=True))
        point, taken = _timed_size(size, lambda at=at: speed_at(bench.at(*at)))
        curve.append(point)
        samples |= {f"{side} {size_text(point)}": values for side, values in taken.items()}
    return curve, samples


def dataset_latency(bench: EvalContext, ways: Ways) -> tuple[dict[str, Any], Samples]:
    """Latency of a batch of the evaluation set: fields of group `speed`, and samples. Empty with `lengths=fixed`.

    The batches are those of the evaluation, in loader order, each padded to its longest row rounded up to 64 tokens. Each
    distinct (rows, tokens) is timed once, with all samples and repeats, dense and sparse in turn, and weighted by its number of
    batches; the last, smaller batch is a size of its own. The latency is the sum over all batches divided by their number. As in
    serving, one network runs all sizes with the kernels and execution mode that were fastest at the fixed size, for dense and
    sparse alike. Each size is compiled and captured separately.

    If one size cannot be timed, there is no latency, and the size gives the reason.

    Args:
        bench: context of the fixed size.
        ways: "dense", "dense_low" in a low precision, and "sparse" if kernels run -> the network and its execution there.
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
    """Time parts of a translation network separately, each in its fastest execution: field `parts` of the result, samples.

    Whole translations are not compiled: the compiler would unroll all of their steps, which takes minutes.

    Args:
        bench: context of the fixed size.
        sparse: the network with kernels, if there is one.
    """
    parts, samples = [], {}
    for part in bench.experiment.measure.parts:
        settings, inputs = part_settings(bench, part), part_inputs(bench, part)
        size = {"batch_size": len(next(iter(inputs.values()))), "sequence_length": part_length(bench, part)}

        def speed(
            part: str = part, inputs: dict[str, Tensor] = inputs, settings: Measure = settings
        ) -> tuple[dict[str, Any], Samples]:
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
        if part == "translation":
            tokens = bench.batch_size * part_length(bench, part)
            sides = (side for side in ("dense", "sparse") if f"latency_{side}_ms" in entry)
            entry |= {f"tokens_per_s_{side}": tokens / entry[f"latency_{side}_ms"] * 1e3 for side in sides}
        parts.append({"part": part} | entry)
        samples |= {f"{side} {part} {size_text(entry)}": values for side, values in taken.items()}
    return parts, samples


def part_settings(bench: EvalContext, part: str) -> Measure:
    """The settings for timing a part."""
    settings = bench.experiment.measure
    if part != "translation":
        return settings
    modes = [mode for mode in settings.execution_modes if not is_compiled(mode)]
    return replace(settings, execution_modes=modes or ["eager"])


def part_length(bench: EvalContext, part: str) -> int:
    """Number of tokens: of the source, of the hypotheses before a step, or of source and translation alike."""
    length = bench.sequence_length or 1
    return max(1, length // 2) if part == "decoder_step" else length


def part_inputs(bench: EvalContext, part: str) -> dict[str, Tensor]:
    """Keyword arguments of a part."""
    if part != "decoder_step":
        return {name: bench.inputs[name] for name in ("source", "source_mask")}
    target, beam = bench.inputs["target"], bench.experiment.dataset.beam
    return {"tokens": target[:, part_length(bench, part) - 1].repeat_interleave(beam)}


def part_of(bench: EvalContext, net: nn.Module, part: str) -> nn.Module:
    """A part of a network that translates, in eval mode."""
    assert isinstance(net, TranslationNetwork)  # checked before training
    source, mask = bench.inputs["source"], bench.inputs["source_mask"]
    if part == "encoder":
        return SourceEncoder(net).eval()
    if part == "translation":
        data = bench.experiment.dataset
        return WholeTranslation(net, Decoding(data.beam, data.length_penalty, part_length(bench, part))).eval()
    given = bench.inputs["target"][:, : part_length(bench, part)].repeat_interleave(bench.experiment.dataset.beam, 0)
    return DecoderStep(net, source, mask, given).eval()


def latency_fields(side: str, latency: LatencySummary) -> dict[str, float]:
    """The latency of "dense", "dense_low" or "sparse" as fields of the result."""
    return {
        f"latency_{side}_ms": latency.median_ms,
        f"latency_{side}_p20_ms": latency.p20_ms,
        f"latency_{side}_p80_ms": latency.p80_ms,
    }


def with_prefill(speed: dict[str, Any], prefill: Prefilled) -> dict[str, Any]:
    """Add the latency of the prompt to group `speed`."""
    sides = {"dense": prefill.dense, "sparse": prefill.sparse}
    found = {f"latency_prefill_{side}_ms": timed.median_ms for side, timed in sides.items() if timed is not None}
    not_timed = {f"prefill/{side}": why for side, why in prefill.not_timed.items()}
    return speed | found | {"variants_not_timed": speed["variants_not_timed"] | not_timed}


def throughput_name(side: str, bench: EvalContext) -> str:
    """Name of the throughput field; in decoding, a step produces one token per row."""
    return f"throughput_{side}_samples_per_s" if bench.prompt is None else f"tokens_per_s_{side}"


def dense_side(timed: DenseTiming, bench: EvalContext) -> dict[str, Any]:
    """Fields of the dense network in group `speed`, except its latency."""
    return {
        throughput_name("dense", bench): timed.throughput_samples_per_s,
        "execution_mode_dense": timed.execution.fastest.name,
        "dense_variant": timed.execution.name,
        "fused_dense_latency_ms": None if timed.fused_latency is None else timed.fused_latency.median_ms,
        "gpu_clock_mhz": timed.clock_mhz,
        **_low_side(timed, bench),
    }


def _low_side(timed: DenseTiming, bench: EvalContext) -> dict[str, Any]:
    """Fields of the dense network in a low precision, if it was timed."""
    if (low := timed.low) is None:
        return {}
    return {
        **latency_fields("dense_low", low.latency),
        **({} if low.speedup is None else low.speedup.to_json(SPEEDUP_OVER["dense_low"])),
        throughput_name("dense_low", bench): timed.batch_size / low.latency.median_ms * 1e3,
        "execution_mode_dense_low": low.execution.fastest.name,
        "dense_low_variant": low.execution.name,
        "dense_low_precision": low.precision,
    }


def _timed_size(
    size: dict[str, int | None], speed_at: Callable[[], tuple[dict[str, Any], Samples]]
) -> tuple[dict[str, Any], Samples]:
    """An entry of `curve` or `dataset_lengths`; without samples and latencies if it cannot be timed."""
    try:
        speed, taken = speed_at()
    except (torch.OutOfMemoryError, NothingRuns) as error:
        why = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
        log.warning("measure: batch %d, length %s: %s", *size.values(), why)
        return size | {"not_measured": why}, {}
    kept = (*ON_THE_CURVE, "kernels", "sparse_flops_share")
    return size | {name: speed[name] for name in kept if name in speed}, taken


def sizes(experiment: Experiment) -> list[tuple[int, int | None]]:
    """(batch size, sequence length) of all points, starting with the result's own; images have no length."""
    measure = experiment.measure
    lengths = (None,) if experiment.dataset.info.sequence_length is None else measure.sequence_lengths
    return [(batch_size, length) for length, batch_size in product(lengths, measure.batch_sizes)]
