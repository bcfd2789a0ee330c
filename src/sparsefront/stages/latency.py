"""Latencies as fields of the result: from the samples of one size, and at the sizes of the curve and of the evaluation set."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.config.experiment import Experiment
from sparsefront.measure.accuracy import first_samples
from sparsefront.measure.decode import Prefilled
from sparsefront.measure.end_to_end import DenseTiming, time_alone, time_pair, time_size
from sparsefront.measure.execution_mode import NothingRuns, is_compiled
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import dataset_size_text, size_text
from sparsefront.measure.serving import serve_networks
from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import SPEEDUP_OVER, latency_over_batches, speedup_of
from sparsefront.measure.timers import summarize
from sparsefront.results.record import OF_DATASET
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
        point, taken = _time_size(size, lambda at=at: speed_at(bench.at(*at)))
        curve.append(point)
        samples |= {f"{side} {size_text(point)}": values for side, values in taken.items()}
    return curve, samples


def dataset_latency(bench: EvalContext, ways: Ways) -> tuple[dict[str, Any], Samples]:
    """Latency of a batch of the evaluation set: fields of group `speed`, and samples. Empty with `lengths=fixed`.

    The batches are those of the evaluation, in loader order, each padded to its longest row rounded up to 64 tokens. Each
    distinct (rows, tokens) is timed once, with all samples and repeats, dense and sparse in turn, and weighted by its number of
    batches; the last, smaller batch is a size of its own. The latency is the sum over all batches divided by their number. As in
    serving, one network runs all sizes with the kernels and execution mode that were fastest at the fixed size, for dense and
    sparse alike. Each size is compiled and captured separately. Without padding a size is (rows, real tokens of a row on
    average), see `unpadded.count_tokens`.

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
        return timing_fields(taken), taken

    lengths, timed, samples = [], [], {}
    for point, same in bench.of_the_dataset():
        size = {"batch_size": point.batch_size, "sequence_length": same.length}
        entry, taken = _time_size(size, lambda point=point: speed_at(point.inputs))
        lengths.append(entry | {"batches": same.batches})
        timed.append((same.batches, taken))
        samples |= {f"{side} {dataset_size_text(entry)}": values for side, values in taken.items()}
    whole = all(taken for _, taken in timed)
    return {"dataset_lengths": lengths} | (latency_over_batches(timed) if whole else {}), samples


def serving(bench: EvalContext, ways: Ways) -> dict[str, Any]:
    """Group `serving` of a measurement with mode=serve, with lengths of the reporting split; empty with another mode."""
    settings = bench.experiment.measure
    if settings.mode != "serve":
        return {}
    lengths: list[int | None] = []
    for batch in first_samples(bench.data.test_dataloader(), settings.evaluate_limit):
        inputs = bench.task.net_inputs(batch)
        mask = inputs.get("attention_mask")
        rows = [bench.sequence_length] * len(next(iter(inputs.values()))) if mask is None else mask.sum(1).tolist()
        lengths += [None if length is None else min(int(length), bench.sequence_length or length) for length in rows]
    return {"serving": serve_networks(ways, bench.inputs, lengths, settings)}


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
            part: str = part,
            inputs: dict[str, Tensor] = inputs,
            settings: Measure = settings,
            tokens: int | None = tokens_of_part(size | {"part": part}),
        ) -> tuple[dict[str, Any], Samples]:
            if sparse is None:
                alone = time_alone(part_of(bench, dense, part), inputs, settings)
                variants, taken = {"dense_variant": alone.execution.name}, alone.samples_ms
            else:
                timed = time_pair(part_of(bench, dense, part), part_of(bench, sparse, part), inputs, settings)
                variants = {"dense_variant": timed.dense.execution.name, "sparse_variant": timed.execution.name}
                taken = timed.samples_ms
            return timing_fields(taken, tokens, TOKENS_PER_S) | variants, taken

        log.info("measure: latency of the %s, %s", part.replace("_", " "), size_text(size))
        entry, taken = _time_size(size, speed)
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
    prefix = bench.inputs["target"][:, : part_length(bench, part)].repeat_interleave(bench.experiment.dataset.beam, 0)
    return DecoderStep(net, source, mask, prefix).eval()


# Formats of the fields with the rate of one network; in decoding, a step produces one token per row.
SAMPLES_PER_S, TOKENS_PER_S = "throughput_{}_samples_per_s", "tokens_per_s_{}"


def timing_fields(
    samples: Samples, count: int | None = None, rate: str = SAMPLES_PER_S, *, fused: bool = False
) -> dict[str, float | None]:
    """All fields of the result that follow from the latency samples of one size; None of what was not timed.

    Args:
        count, rate: samples or tokens of a call, and the format of the field with their number per second; None: no rate.
        fused: dense has a fused graph, whose samples are those of dense where it is the fastest version.
    """
    fields: dict[str, float | None] = {"fused_dense_latency_ms": None}
    for side in ("dense", "dense_low", "sparse"):
        taken = summarize(sum(samples[side], [])) if side in samples else None
        for end, value in (("", "median_ms"), ("_p20", "p20_ms"), ("_p80", "p80_ms")):
            fields[f"latency_{side}{end}_ms"] = None if taken is None else getattr(taken, value)
        if count is not None and taken is not None:
            fields[rate.format(side)] = count / taken.median_ms * 1e3
    if fused and "dense" in samples:
        fields["fused_dense_latency_ms"] = summarize(sum(samples.get("fused_dense", samples["dense"]), [])).median_ms
    for side, name in SPEEDUP_OVER.items():
        fields |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        if {side, "sparse"} <= samples.keys():
            fields |= speedup_of(samples[side], samples["sparse"]).to_json(name)
    return fields


def with_timings(speed: Mapping[str, Any], samples: Samples) -> dict[str, Any]:
    """Group `speed` of a result, with all fields that follow from its samples.json computed again."""

    def at(size: str) -> Samples:
        return {side.partition(" ")[0]: taken for side, taken in samples.items() if side.partition(" ")[2] == size}

    def of(entry: Mapping[str, Any], size: str, count: int | None = None, rate: str = TOKENS_PER_S) -> dict[str, Any]:
        fused = entry.get("fused_dense_latency_ms") is not None
        fields = timing_fields(at(size), count, rate, fused=fused).items()
        return {**entry, **{name: value for name, value in fields if not size or name in ON_THE_CURVE}}

    rate = SAMPLES_PER_S if speed["timed_mode"] is None else TOKENS_PER_S
    dataset = [(entry, dataset_size_text(entry)) for entry in speed["dataset_lengths"]]
    timed = [(entry["batches"], at(size)) for entry, size in dataset]
    again = of(speed, "", speed["batch_size"], rate) | {
        "curve": [of(entry, size_text(entry), entry.get("batch_size"), rate) for entry in speed["curve"]],
        "dataset_lengths": [of(*entry) for entry in dataset],
        "parts": [of(entry, f"{entry['part']} {size_text(entry)}", tokens_of_part(entry)) for entry in speed["parts"]],
        **dict.fromkeys(OF_DATASET),
        **(latency_over_batches(timed) if timed and all(taken for _, taken in timed) else {}),
    }
    counts = {
        (len(at("")[side]), len(one)) for side in ("dense", "dense_low", "sparse") for one in at("").get(side, ())
    }
    for other in counts - {(speed["repeats"], speed["samples_per_repeat"])}:
        again["repeats"], again["samples_per_repeat"] = other
    return again


def tokens_of_part(part: Mapping[str, Any]) -> int | None:
    """The tokens of a whole translation; None of other parts."""
    return part["batch_size"] * part["sequence_length"] if part["part"] == "translation" else None


def with_prefill(speed: dict[str, Any], prefill: Prefilled) -> dict[str, Any]:
    """Add the latency of the prompt to group `speed`."""
    sides = {"dense": prefill.dense, "sparse": prefill.sparse}
    latencies = {f"latency_prefill_{side}_ms": timed.median_ms for side, timed in sides.items() if timed is not None}
    not_timed = {f"prefill/{side}": why for side, why in prefill.not_timed.items()}
    return speed | latencies | {"variants_not_timed": speed["variants_not_timed"] | not_timed}


def collect_untimed(timed: DenseTiming) -> dict[str, Any]:
    """Fields of the dense network in group `speed` that do not follow from samples."""
    fields: dict[str, Any] = {
        "execution_mode_dense": timed.execution.fastest.name,
        "dense_variant": timed.execution.name,
        "gpu_clock_mhz": timed.clock_mhz,
    }
    low = timed.low
    if low is not None:
        fields["execution_mode_dense_low"] = low.execution.fastest.name
        fields |= {"dense_low_variant": low.execution.name, "dense_low_precision": low.precision}
    return fields


def _time_size(
    size: dict[str, int | None], speed_at: Callable[[], tuple[dict[str, Any], Samples]]
) -> tuple[dict[str, Any], Samples]:
    """An entry of `curve` or `dataset_lengths`; without samples and latencies if it cannot be timed."""
    try:
        speed, taken = speed_at()
    except (torch.OutOfMemoryError, NothingRuns) as error:
        why = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
        log.warning("measure: batch %d, length %s: %s", *size.values(), why)
        return size | {"not_measured": why}, {}
    field_names = (*ON_THE_CURVE, "kernels", "sparse_flops_share")
    return size | {name: speed[name] for name in field_names if speed.get(name) is not None}, taken


def sizes(experiment: Experiment) -> list[tuple[int, int | None]]:
    """(batch size, sequence length) of all points, starting with the result's own; images have no length."""
    measure = experiment.measure
    lengths = (None,) if experiment.dataset.info.sequence_length is None else measure.sequence_lengths
    return [(batch_size, length) for length, batch_size in product(lengths, measure.batch_sizes)]
