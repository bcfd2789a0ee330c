"""The result (record) of a run: the single schema of JSON, CSV and W&B.

Field names are unique across groups, so nested JSON and flat CSV lines use the same names.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Required, get_type_hints

from typing_extensions import TypedDict

from sparsefront.artifacts.bounded_files import parse_json_bounded
from sparsefront.results.field_types import CheckedFields, Positive, Real, Whole, from_cell, to_cell

SCHEMA_VERSION = 16  # the only one that is read; published records of earlier versions were migrated: `migrated_from`


@dataclass(frozen=True, kw_only=True)
class Identity(CheckedFields):
    """Identifies a run and what it was measured on, sufficient to repeat it. All fields describe the time of the measurement
    and are kept when a result is shown or written again.

    `time` is ISO 8601 with time zone; `commit` is None outside of a checkout; `gpu`, `driver`, `cuda` are None on a CPU.
    `config_hash` is of the typed options (see `Experiment.config_hash`); `run_id` distinguishes results. `gpu_clock_mhz` is the
    SM clock during timed work, if the driver reports it. `processor` and `threads` (per operator) describe a CPU that was
    measured. `dataset_digest` is of the raw data. `initial_weights`, before any training: hub name and revision, or the digest of
    each local file, or random (`Model.fingerprint`). Digests of weights: `dense_weights_sha256` before pruning,
    `dense_continued_weights_sha256` and `dense_distilled_weights_sha256` of the continued dense networks, `weights_sha256` and
    `masks_sha256` of the pruned one.
    `samples_sha256`, `outcomes_sha256`: of the files next to the record; `record_sha256`: of all other fields, so that
    `sparsefront.verify` detects edits. No machine is named.
    `checkpoint`: the exported network, a folder below the cache folder, to which `checkpoint` in the run's folder links; None
    if nothing was exported. `recovery_seed` is None if nothing was pruned. `plan_sha256`: of the plan of a study that names
    this run; None if there is none. `migrated_from`: the earlier schema version of a published record that was migrated, whose
    newer fields are None and whose settings lack options added since; None for all others.
    """

    run_id: str
    time: str
    commit: str | None = None
    config_hash: str
    seed: Whole
    recovery_seed: Whole | None = None
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None
    gpu_clock_mhz: Real | None = None
    python: str
    torch_version: str
    triton_version: str | None = None
    lightning_version: str | None = None
    transformers_version: str | None = None
    processor: str | None = None
    threads: Whole | None = None
    dataset_digest: str | None = None
    initial_weights: dict[str, Any] | None = None
    dense_weights_sha256: str | None = None
    dense_continued_weights_sha256: str | None = None
    dense_distilled_weights_sha256: str | None = None
    weights_sha256: str | None = None
    masks_sha256: str | None = None
    samples_sha256: str | None = None
    outcomes_sha256: str | None = None
    record_sha256: str | None = None
    checkpoint: str | None = None
    plan_sha256: str | None = None
    migrated_from: Whole | None = None
    schema_version: Whole = SCHEMA_VERSION


# The groups of a result, with the meaning and unit of each field. None means "not measured", never "zero" or "failed".


class TimedSize(TypedDict, total=False):
    """An entry of `Speed.curve`: what readers of a result use; it may hold more."""

    batch_size: Required[Whole]
    sequence_length: Required[Whole | None]
    latency_dense_ms: Real | None
    latency_sparse_ms: Real | None
    fused_dense_latency_ms: Real | None
    latency_dense_low_ms: Real | None
    speedup: Real | None
    speedup_low: Real | None
    speedup_high: Real | None
    speedup_low_precision: Real | None
    sparse_flops_share: Real | None
    dense_variant: str | None
    dense_low_precision: str | None
    kernels: dict[str, Whole]
    not_measured: str


class TimedPart(TimedSize, total=False):
    """An entry of `Speed.parts`."""

    part: Required[str]
    tokens_per_s_dense: Real | None
    tokens_per_s_sparse: Real | None


class DatasetSize(TimedSize, total=False):
    """An entry of `Speed.dataset_lengths`."""

    sequence_length: Required[Whole]
    batches: Required[Whole]


class LayerKernel(TypedDict, total=False):
    """An entry of `Kernels.kernel_per_layer`: what readers of a result use; it may hold more."""

    chosen: str | None
    why_dense: str
    latency_us: Real | None
    roofline_fraction: Real | None
    candidates: dict[str, Real] | None
    unsupported: dict[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Choice(CheckedFields):
    """The choices of a run, named as in the configuration, with each part's parameters in a mapping.

    `model_variant` distinguishes networks of one model: `vit_b_16`, a BERT's size, hub name or folder name.
    `model_parameters` contain only what determined the loaded network, and facts about it. `dataset_split`: the rule, with
    version, by which rows were held out, or `rows`: individually; None if nothing was held out. `structured`:
    how the network was made smaller before `pattern` pruned it, with the amount in `structured_parameters`; None if it was not.
    `trainer_parameters` are those that affect training, with `auto` resolved.
    `control`: the additional baseline of the pruned network besides the dense one; None if there is nothing to match.
    """

    model: str
    model_variant: str | None = None
    model_parameters: dict[str, Any] = field(default_factory=dict)
    dataset: str
    dataset_task: str | None = None
    dataset_parameters: dict[str, Any] = field(default_factory=dict)
    dataset_split: str | None = None
    structured: str | None = None
    structured_parameters: dict[str, Any] = field(default_factory=dict)
    pattern: str
    pattern_parameters: dict[str, Any] = field(default_factory=dict)
    granularity: Whole | str | None = None
    importance: str | None = None
    importance_parameters: dict[str, Any] = field(default_factory=dict)
    allocation: str | None = None
    allocation_parameters: dict[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    schedule_parameters: dict[str, Any] = field(default_factory=dict)
    recovery: str | None = None
    recovery_parameters: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    recipe_parameters: dict[str, Any] = field(default_factory=dict)
    trainer_parameters: dict[str, Any] = field(default_factory=dict)
    kernel_mode: str | None = None
    control: str | None = None

    @property
    def prunings(self) -> str:
        """What pruned the network, in order: "depth + block_wise"."""
        return self.pattern if self.structured is None else f"{self.structured} + {self.pattern}"


@dataclass(frozen=True, kw_only=True)
class Sparsity(CheckedFields):
    """Fractions of zeros in [0, 1], never percent.

    `sparsity_achieved` is over the prunable weights, including layers that stayed dense; `sparsity_whole_model` is over all
    parameters. With `structured` all are of the smaller network, and `weights_left` and `theoretical_flops_left` are the shares
    of the dense network's prunable weights, and of the flops of their products, that are left. `dense_layers`: layer -> why it
    stayed dense; `dense_weight_shares`: layer -> its share of the prunable weights. `n_of_m`: windows of a balanced pattern,
    "2:4", or "1:4 in 20, 3:32 in 4" layers. `pattern_per_layer`: for several patterns in one network. `collapsed_layers`: layers
    with less than a tenth of the target density, or than 1 % -> their density.
    """

    sparsity_target: Real
    sparsity_achieved: Real | None = None
    sparsity_whole_model: Real | None = None
    weights_left: Real | None = None
    theoretical_flops_left: Real | None = None
    sparsity_per_layer: dict[str, Real] = field(default_factory=dict)
    dense_layers: dict[str, str] = field(default_factory=dict)
    dense_weight_shares: dict[str, Real] = field(default_factory=dict)
    collapsed_layers: dict[str, Real] | None = None
    n_of_m: str | None = None
    pattern_per_layer: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Quality(CheckedFields):
    """The task's metric, a fraction or a perplexity, of several networks on the same data in the same dtype.

    `dense`: before pruning; `dense_continued`: the same network trained further, unpruned, with exactly the budget of the
    recovery (`control=dense_continued`); `dense_distilled`: likewise, with the recovery's loss and teacher; `dense_low`:
    before pruning, in the low precision of `latency_dense_low_ms`; `masked`: the sparse weights in dense layers; `sparse`: the
    same weights with sparse kernels; all on the reporting split. `val_*`: the same on the held-out part of train, used for
    choices; None if nothing is held out. `val_seen`: the checkpoint may have been trained on the held-out part, so that
    `val_*` must not be used. `extra_metrics`: "dense" | "masked" | "sparse" -> metric -> value. `metric_signature`: sacreBLEU's
    description of how the metric was computed; None for others. `*_standard_error`: due to the finite test set, for a single
    network (differences of networks on the same samples are more certain). `evaluated_samples`: number of evaluated inputs or
    questions; `evaluate_limit`: its limit. `outcomes_file`, relative to the run's folder: per-sample outcomes on the reporting
    split.
    """

    metric_name: str
    metric_signature: str | None = None
    dense: Real | None = None
    dense_continued: Real | None = None
    dense_distilled: Real | None = None
    dense_low: Real | None = None
    masked: Real | None = None
    sparse: Real | None = None
    dense_standard_error: Real | None = None
    dense_continued_standard_error: Real | None = None
    dense_distilled_standard_error: Real | None = None
    dense_low_standard_error: Real | None = None
    masked_standard_error: Real | None = None
    sparse_standard_error: Real | None = None
    val_seen: bool | None = None
    val_dense: Real | None = None
    val_dense_continued: Real | None = None
    val_dense_distilled: Real | None = None
    val_dense_low: Real | None = None
    val_masked: Real | None = None
    val_sparse: Real | None = None
    val_dense_standard_error: Real | None = None
    val_dense_continued_standard_error: Real | None = None
    val_dense_distilled_standard_error: Real | None = None
    val_dense_low_standard_error: Real | None = None
    val_masked_standard_error: Real | None = None
    val_sparse_standard_error: Real | None = None
    evaluate_limit: Whole | None = None
    evaluated_samples: Whole | None = None
    val_evaluated_samples: Whole | None = None
    outcomes_file: str | None = None
    extra_metrics: dict[str, dict[str, Real]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Speed(CheckedFields):
    """Latency of one batch in milliseconds, of the sparse network and its dense baseline: median, 20th, 80th percentile.

    `speedup` is dense over sparse, with the interval `speedup_low` .. `speedup_high`. `latency_device`: "cpu" | "cuda";
    `latency_kernel` names the kernels of the pruned layers: "reference" on a CPU, never to be taken for a GPU latency.
    `execution_mode_*` is the fastest execution mode: eager, compiled, CUDA graph ...; `*_variant` adds the network's fastest
    form in it: "compile_cuda_graph+fused_qkv". Dense is the fastest of all dense versions.
    `variant_medians_ms`: "dense/<candidate>" or "sparse/<candidate>" -> median of a short timing, of the fastest alone where an
    earlier search found it; `variants_not_timed`: the same -> why it was not timed. `fused_dense_latency_ms`: our own fused
    graph with every layer dense.
    `curve`: other batch sizes and sequence lengths of the same weights, each with kernels chosen anew: fields of this group,
    "kernels": kernel -> number of pruned layers, "sparse_flops_share"; or "not_measured" with the reason.
    `parts`: encoder, decoder_step and translation (`measure.parts`), as entries of `curve`; for a step `batch_size` counts
    hypotheses, for a translation sentences, with `tokens_per_s_*` in target tokens, one per sentence and step.
    `latency_*_dataset_ms`, `speedup_dataset` and its interval: of a batch of the evaluation set, averaged over all of its
    batches (`measure.lengths=dataset`). `dataset_lengths`: the sizes of those batches, as entries of `curve`, with "batches":
    their number; if `variants_autotuned` has "unpadded", by the real tokens of a row on average.
    `dtype`: of weights and activations, and of dense and masked; `precision`: of the sparse network's products
    with prunable weights: fp8, fp8_static, int8, or the dtype, also if no layer supports the requested one; with
    pattern=dense in low precision, "sparse" is the dense network in it.
    `latency_dense_low_ms`: the dense network in `dense_low_precision`, the fastest requested low one;
    `speedup_low_precision`: of the sparse network over it, with its interval, and `*_dataset` of both.
    `samples_file`, relative to the run's folder, has every sample: `samples_per_repeat` in each of `repeats` repeats, after
    `warmup_rounds`. `modes_autotuned`, `variants_autotuned`: what was tried to find the fastest execution, for about
    `autotune_seconds` per network. `timed_image_size`: side in pixels, if it differs from the data set's setting.
    `timed_mode`: "decode" if latencies are of one decoding step, one token per row, after a prompt of `sequence_length` tokens
    in a static cache of `cache_length`; None: of a whole forward pass. In decode mode `tokens_per_s_*` replace throughputs,
    `latency_prefill_*_ms` are medians of the prompt, and `dense_low_precision` is int8_weight_only.
    `latency_predicted_ms`: of the sparse network, by the latency search, before its recovery.
    """

    latency_dense_ms: Positive | None = None
    latency_dense_p20_ms: Real | None = None
    latency_dense_p80_ms: Real | None = None
    latency_sparse_ms: Positive | None = None
    latency_sparse_p20_ms: Real | None = None
    latency_sparse_p80_ms: Real | None = None
    latency_predicted_ms: Real | None = None
    speedup: Positive | None = None
    speedup_low: Positive | None = None
    speedup_high: Positive | None = None
    latency_dense_low_ms: Positive | None = None
    latency_dense_low_p20_ms: Real | None = None
    latency_dense_low_p80_ms: Real | None = None
    speedup_low_precision: Positive | None = None
    speedup_low_precision_low: Positive | None = None
    speedup_low_precision_high: Positive | None = None
    latency_dense_dataset_ms: Positive | None = None
    latency_sparse_dataset_ms: Positive | None = None
    speedup_dataset: Positive | None = None
    speedup_dataset_low: Positive | None = None
    speedup_dataset_high: Positive | None = None
    latency_dense_low_dataset_ms: Positive | None = None
    speedup_low_precision_dataset: Positive | None = None
    speedup_low_precision_dataset_low: Positive | None = None
    speedup_low_precision_dataset_high: Positive | None = None
    dataset_lengths: list[DatasetSize] = field(default_factory=list)
    latency_device: str | None = None
    latency_kernel: str | None = None
    execution_mode_dense: str | None = None
    execution_mode_sparse: str | None = None
    dense_variant: str | None = None
    sparse_variant: str | None = None
    execution_mode_dense_low: str | None = None
    dense_low_variant: str | None = None
    dense_low_precision: str | None = None
    variants_not_timed: dict[str, str] = field(default_factory=dict)
    variant_medians_ms: dict[str, Real] = field(default_factory=dict)
    fused_dense_latency_ms: Real | None = None
    batch_size: Whole | None = None
    sequence_length: Whole | None = None
    timed_image_size: Whole | None = None
    timed_mode: str | None = None
    cache_length: Whole | None = None
    tokens_per_s_dense: Positive | None = None
    tokens_per_s_sparse: Positive | None = None
    tokens_per_s_dense_low: Positive | None = None
    latency_prefill_dense_ms: Positive | None = None
    latency_prefill_sparse_ms: Positive | None = None
    dtype: str | None = None
    precision: str | None = None
    layout: str | None = None
    throughput_dense_samples_per_s: Real | None = None
    throughput_sparse_samples_per_s: Real | None = None
    throughput_dense_low_samples_per_s: Real | None = None
    repeats: Whole | None = None
    samples_per_repeat: Whole | None = None
    warmup_rounds: Whole | None = None
    modes_autotuned: list[str] | None = None
    variants_autotuned: list[str] | None = None
    autotune_seconds: Real | None = None
    curve: list[TimedSize] = field(default_factory=list)
    parts: list[TimedPart] = field(default_factory=list)
    samples_file: str | None = None


OF_DATASET = (
    *("latency_dense_dataset_ms", "latency_sparse_dataset_ms"),
    *("speedup_dataset", "speedup_dataset_low", "speedup_dataset_high"),
    "latency_dense_low_dataset_ms",
    *("speedup_low_precision_dataset", "speedup_low_precision_dataset_low", "speedup_low_precision_dataset_high"),
)
SPEEDUPS_LOW = ("speedup_low_precision", "speedup_low_precision_low", "speedup_low_precision_high")
"""Speedup over the low-precision dense network, with its interval."""


@dataclass(frozen=True, kw_only=True)
class Size(CheckedFields):
    """Bytes: of all weights as stored for inference, of what the network keeps on its device (weights and packed operands), and
    the peak of one forward pass.

    `dense_bytes_per_layer`: prunable layers that are dense in the sparse network -> bytes of their weight.
    """

    weight_bytes_dense: Whole | None = None
    weight_bytes_sparse: Whole | None = None
    resident_bytes_dense: Whole | None = None
    resident_bytes_sparse: Whole | None = None
    peak_memory_bytes_dense: Whole | None = None
    peak_memory_bytes_sparse: Whole | None = None
    dense_bytes_per_layer: dict[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kernels(CheckedFields):
    """The kernels chosen by the swap, and in `dense_weights` everything else with weights (embeddings, recurrent layers,
    parameters read without a layer call, layers that are not prunable) -> why it stays dense.

    `kernel_per_layer`: layer -> {"chosen", "family", "density", "weight_bytes", "latency_us", "candidates": kernel ->
    microseconds, "roofline_fraction", "relative_error", "unsupported": kernel -> reason, "notes", "launch": its parameters,
    "why_dense" if a pruned layer runs dense, "m", "k", "n" of its product}; unknown keys are absent. Shares run a sparse
    kernel: of the prunable layers, by count, and of the dense floating-point operations with all weights.
    `fused_blocks`: how encoder blocks were rewritten, or why not -> number of blocks; `block_variants_ms`: chain of blocks ->
    variant -> milliseconds, if timed. `block_norms`: LayerNorms of feature-major blocks by type, layouts and sizes ->
    {"chosen", "launch", "latency_us", "candidates", "unsupported"}, as for layers. In low precision,
    `low_precision_layers`: each Linear and convolution -> its precision, or why it stays in `dtype`; `quantization_error`:
    relative error of the network's outputs for the timed batch against those before quantization.
    """

    kernel_per_layer: dict[str, LayerKernel] = field(default_factory=dict)
    sparse_layer_share: Real | None = None
    sparse_flops_share: Real | None = None
    fused_blocks: dict[str, Whole] = field(default_factory=dict)
    block_variants_ms: dict[str, dict[str, Real]] = field(default_factory=dict)
    block_norms: dict[str, dict[str, Any]] = field(default_factory=dict)
    dense_weights: dict[str, str] = field(default_factory=dict)
    low_precision_layers: dict[str, str] = field(default_factory=dict)
    quantization_error: Real | None = None


@dataclass(frozen=True, kw_only=True)
class Cost(CheckedFields):
    """Wall seconds of the stages when first computed, including killed runs from which they resumed; `dense_reused`: the dense
    weights were already stored.

    `recovery_steps`, `recovery_epochs`, `recovery_samples`: optimizer steps, passes over the data and rows of batches of the
    recovery, over all rounds and processes, as counted by the training loop; 0 if it trains nothing. `dense_steps`,
    `dense_samples`: the same for the dense network. `dense_continued_seconds`, `dense_distilled_seconds`: of the continued
    dense networks.

    Of `measure_seconds`, not counting what was stored before: `search_seconds` chose kernels and the fastest versions,
    `timing_seconds` timed them, `evaluation_seconds` computed metrics. Of the recovery's training: `recovery_samples_per_s`;
    `recovery_unlabeled_samples` of its samples have no label, None if the data has none; `recovery_gpu_busy_share`: share of
    its time in which the first GPU ran a kernel, of any process, as the driver reports it; None on a CPU, which has no such
    counter. `*_joules`: of the GPUs in a stage, by NVML's counter, without logits of a teacher that were stored; None, with the
    reason in `no_joules`, on a CPU, where NVML refuses, where another process used the GPU, and after a kill.
    """

    train_dense_seconds: Real | None = None
    prune_seconds: Real | None = None
    recover_seconds: Real | None = None
    recovery_steps: Whole | None = None
    recovery_epochs: Real | None = None
    recovery_samples: Whole | None = None
    dense_steps: Whole | None = None
    dense_samples: Whole | None = None
    dense_continued_seconds: Real | None = None
    dense_distilled_seconds: Real | None = None
    recovery_unlabeled_samples: Whole | None = None
    recovery_samples_per_s: Real | None = None
    recovery_gpu_busy_share: Real | None = None
    measure_seconds: Real | None = None
    search_seconds: Real | None = None
    timing_seconds: Real | None = None
    evaluation_seconds: Real | None = None
    dense_reused: bool | None = None
    train_dense_joules: Real | None = None
    prune_joules: Real | None = None
    recover_joules: Real | None = None
    no_joules: str | None = None


ENERGY = ("train_dense_joules", "prune_joules", "recover_joules", "no_joules")
"""Fields that the first records of this schema version lack."""


def record_digest(content: Mapping[str, Any]) -> str:
    """sha256 in hexadecimal over all fields of a result except this digest.

    Values that were not measured (null or empty) are left out.

    Args:
        content: the nested JSON of a result.
    """
    stated = {
        group: {name: value for name, value in fields.items() if (group, name) != ("identity", "record_sha256")}
        for group, fields in content.items()
    }
    return hashlib.sha256(json.dumps(_without_gaps(stated), sort_keys=True, allow_nan=False).encode()).hexdigest()


def _without_gaps(value: dict | list) -> dict | list:
    """Remove nulls and empty values; avoids a call for plain values, of which stores have millions."""
    if isinstance(value, list):
        return [_without_gaps(entry) if isinstance(entry, dict | list) else entry for entry in value]
    entries = {}
    for name, entry in value.items():
        if isinstance(entry, dict | list):
            entry = _without_gaps(entry) or None
        if entry is not None:
            entries[name] = entry
    return entries


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run. See the groups for fields and units."""

    identity: Identity
    choice: Choice
    sparsity: Sparsity
    quality: Quality
    speed: Speed = field(default_factory=Speed)
    size: Size = field(default_factory=Size)
    kernels: Kernels = field(default_factory=Kernels)
    cost: Cost = field(default_factory=Cost)

    def to_json(self) -> str:
        """Nested JSON, indented, with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """Parse the output of `to_json`, also without `ENERGY`.

        Raises:
            ValueError: not JSON or too large (`parse_json_bounded`), another schema version, unknown or missing keys (lists
                all), or a wrong type.
        """
        content = parse_json_bounded(text)
        if not isinstance(content, dict) or not isinstance(content.get("identity"), dict):
            raise ValueError("not a result: it has no identity")
        _require_version(content["identity"].get("schema_version"))
        members = {group: fields for group, fields in content.items() if isinstance(fields, dict)}
        if {group: fields.keys() for group, fields in members.items()} != _names_by_group():
            names = {f"{item.group}.{item.name}" for item in result_fields()}
            present = {f"{group}.{name}" for group, fields in members.items() for name in fields}
            needed = names - {f"cost.{name}" for name in ENERGY}
            _require_keys(unknown=(present - names) | (content.keys() - _groups().keys()), missing=needed - present)
        return cls(**{group: kind(**members[group]) for group, kind in _groups().items()})

    def flat(self) -> dict[str, Any]:
        """field -> value in schema order; mappings as JSON text, None if not measured."""
        return {item.name: to_cell(getattr(getattr(self, item.group), item.name)) for item in result_fields()}

    @classmethod
    def from_flat(cls, cells: Mapping[str, str]) -> "Result":
        """Parse a CSV line; missing columns count as not measured, as in published tables of points.

        Raises:
            ValueError: another schema version, a filled cell in an unknown column, a missing required field, or a cell of a
                wrong type.
        """
        _require_version(int(cells["schema_version"]) if cells.get("schema_version", "").isdigit() else None)
        filled = {name for name, text in cells.items() if text != ""}
        _require_keys(unknown=filled - _getters().keys(), missing=set(missing_columns(cells)))
        parsed: dict[str, dict[str, Any]] = {group: {} for group in _groups()}
        for item in result_fields():
            if item.required or item.name in filled:
                parsed[item.group][item.name] = from_cell(item.name, cells.get(item.name, ""), item.hint)
        return cls(**{group: kind(**parsed[group]) for group, kind in _groups().items()})

    def with_values(self, values: Mapping[str, Any]) -> "Result":
        """A copy with some fields replaced by name. Raises KeyError for an unknown field."""
        group_of = {item.name: item.group for item in result_fields()}
        changed: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changed.setdefault(group_of[name], {})[name] = value
        groups = {group: dataclasses.replace(getattr(self, group), **fields) for group, fields in changed.items()}
        return dataclasses.replace(self, **groups)

    def value_of(self, name: str) -> Any:
        """The value of a field, by name. Raises KeyError for an unknown field."""
        return _getters()[name](self)


@dataclass(frozen=True)
class ResultField:
    """One entry of the schema; `required` ones have no default."""

    group: str
    name: str
    hint: object
    required: bool


@lru_cache
def result_fields() -> tuple[ResultField, ...]:
    """The whole schema in order."""
    return tuple(
        ResultField(group, entry.name, hints[entry.name], entry.default is entry.default_factory is MISSING)
        for group, kind in _groups().items()
        for hints in [get_type_hints(kind)]
        for entry in dataclasses.fields(kind)
    )


def missing_columns(header: Iterable[str]) -> list[str]:
    """The columns that a table lacks to be a table of results, in schema order."""
    present = set(header)
    needed = (item.name for item in result_fields() if item.required or item.name == "schema_version")
    return [name for name in needed if name not in present]


@lru_cache
def _getters() -> dict[str, attrgetter]:
    """Field -> its getter."""
    return {item.name: attrgetter(f"{item.group}.{item.name}") for item in result_fields()}


@lru_cache
def _names_by_group() -> dict[str, set[str]]:
    return {group: {item.name for item in result_fields() if item.group == group} for group in _groups()}


@lru_cache
def _groups() -> dict[str, type]:
    return get_type_hints(Result)


def _require_version(version: object) -> None:
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ValueError(
            f"a result of schema version {version}, while this program reads version {SCHEMA_VERSION}; git checkout the commit "
            "of the result to read it"
        )


def _require_keys(**wrong: set[str]) -> None:
    complaints = [f"{word} {', '.join(sorted(names))}" for word, names in wrong.items() if names]
    if complaints:
        raise ValueError(f"not a result of this schema: {'; '.join(complaints)}")
