"""The groups of a result, with the meaning and unit of each field. None means "not measured", never "zero" or "failed"."""

from dataclasses import dataclass, field
from typing import Any

from sparsefront.report.field_types import CheckedFields, check_entries

# What readers of a result take out of its mappings that hold several things, key -> type.
CURVE_HINTS: dict[str, Any] = {
    "batch_size": int,
    "sequence_length": int | None,
    **dict.fromkeys(("latency_dense_ms", "latency_sparse_ms", "fused_dense_latency_ms"), float | None),
    **dict.fromkeys(("speedup", "speedup_low", "speedup_high", "sparse_flops_share"), float | None),
    "dense_variant": str | None,
    "kernels": dict[str, int],
    "not_measured": str,
}
LAYER_HINTS: dict[str, Any] = {
    "chosen": str | None,
    "why_dense": str,
    **dict.fromkeys(("latency_us", "roofline_fraction"), float | None),
    "candidates": dict[str, float] | None,
    "unsupported": dict[str, str] | None,
}


@dataclass(frozen=True, kw_only=True)
class Choice(CheckedFields):
    """What was chosen, by the names of the configuration; parameters of a part are in its mapping.

    `model_variant` tells networks of one model apart: `vit_b_16`, a BERT's size, hub name or folder name.
    `model_parameters` hold only what decided what was loaded, and what the loaded network says of itself.
    `trainer_parameters` are those that change what is trained, with `auto` resolved. `control`: what the pruned network is held
    against beside the dense one; None where there is nothing to match.
    """

    model: str
    model_variant: str | None = None
    model_parameters: dict[str, Any] = field(default_factory=dict)
    dataset: str
    dataset_task: str | None = None
    dataset_parameters: dict[str, Any] = field(default_factory=dict)
    pattern: str
    pattern_parameters: dict[str, Any] = field(default_factory=dict)
    granularity: int | str | None = None
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


@dataclass(frozen=True, kw_only=True)
class Sparsity(CheckedFields):
    """Fractions of zeros in [0, 1], never percent.

    `sparsity_achieved` is over the prunable weights, layers that stayed dense counted in, `sparsity_whole_model` over all
    parameters. `dense_layers`: layer -> why it stayed dense, `dense_weight_shares`: the same -> its part of the prunable weights.
    `n_of_m`: the windows of a balanced pattern, "2:4", or "1:4 in 20, 3:32 in 4" layers. `pattern_per_layer`: of several patterns
    in one network. `collapsed_layers`: layer with less than a tenth of the target density, or than 1 % -> what it keeps.
    """

    sparsity_target: float
    sparsity_achieved: float | None = None
    sparsity_whole_model: float | None = None
    sparsity_per_layer: dict[str, float] = field(default_factory=dict)
    dense_layers: dict[str, str] = field(default_factory=dict)
    dense_weight_shares: dict[str, float] = field(default_factory=dict)
    collapsed_layers: dict[str, float] | None = None
    n_of_m: str | None = None
    pattern_per_layer: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Quality(CheckedFields):
    """The task's metric as a fraction, on the same data in the same dtype. `val_seen`: the checkpoint may have been trained on
    the held-out part, so that `val_*` of this result decide nothing.

    `dense`: before pruning; `dense_continued`: the same network trained on, unpruned, for exactly the budget of the recovery
    (`control=dense_continued`); `masked`: the sparse weights through dense layers; `sparse`: the same weights with the sparse
    kernels running; all of the reporting split. `val_*` are the same of the held-out part of train, by which choices are
    made; None where nothing is held out. `extra_metrics`: "dense" | "masked" | "sparse" -> metric -> value.
    `*_standard_error`: the sampling error of the test set, for one network by itself (networks evaluated on the same samples
    differ more surely than that). `evaluated_samples`: inputs or questions that were evaluated, `evaluate_limit` the most
    allowed. `outcomes_file`, relative to the run's folder, holds what each sample of the reporting split adds to the metric.
    """

    metric_name: str
    dense: float | None = None
    dense_continued: float | None = None
    masked: float | None = None
    sparse: float | None = None
    dense_standard_error: float | None = None
    dense_continued_standard_error: float | None = None
    masked_standard_error: float | None = None
    sparse_standard_error: float | None = None
    val_seen: bool | None = None
    val_dense: float | None = None
    val_dense_continued: float | None = None
    val_masked: float | None = None
    val_sparse: float | None = None
    val_dense_standard_error: float | None = None
    val_dense_continued_standard_error: float | None = None
    val_masked_standard_error: float | None = None
    val_sparse_standard_error: float | None = None
    evaluate_limit: int | None = None
    evaluated_samples: int | None = None
    val_evaluated_samples: int | None = None
    outcomes_file: str | None = None
    extra_metrics: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Speed(CheckedFields):
    """Latency of one batch in milliseconds, of the sparse network and its dense baseline: median, 20th, 80th percentile.

    `speedup` is dense over sparse, with the interval `speedup_low` .. `speedup_high`. `latency_device`: "cpu" | "cuda";
    `latency_kernel` names what ran in the pruned layers: "reference" on a CPU, which never stands for a GPU latency.
    `execution_mode_*` is the fastest execution mode: eager, compiled, CUDA graph ...; `*_variant` adds the form of the network
    that was fastest in it: "compile_cuda_graph+fused_qkv". Dense is the fastest dense version of all.
    `variant_medians_ms`: "dense/<candidate>" or "sparse/<candidate>" -> median of a short timing; `variants_not_timed`:
    the same -> why it was not timed. `fused_dense_latency_ms`: our own fused graph with every layer dense.
    `curve`: the other batch sizes and sequence lengths of the same weights, each with kernels chosen again: fields of this
    group, "kernels": kernel -> number of pruned layers, "sparse_flops_share"; or "not_measured" with the reason.
    `samples_file`, relative to the run's folder, holds every sample: `samples_per_repeat` in each of `repeats` repeats, after
    `warmup_rounds`. `modes_searched`, `variants_searched`: what was tried to find the fastest way, in about `search_seconds`
    for each network. `latency_predicted_ms`: of the sparse one, by the search that chose its patterns, before its recovery.
    """

    latency_dense_ms: float | None = None
    latency_dense_p20_ms: float | None = None
    latency_dense_p80_ms: float | None = None
    latency_sparse_ms: float | None = None
    latency_sparse_p20_ms: float | None = None
    latency_sparse_p80_ms: float | None = None
    latency_predicted_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    latency_device: str | None = None
    latency_kernel: str | None = None
    execution_mode_dense: str | None = None
    execution_mode_sparse: str | None = None
    dense_variant: str | None = None
    sparse_variant: str | None = None
    variants_not_timed: dict[str, str] = field(default_factory=dict)
    variant_medians_ms: dict[str, float] = field(default_factory=dict)
    fused_dense_latency_ms: float | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    dtype: str | None = None
    layout: str | None = None
    throughput_dense_samples_per_s: float | None = None
    throughput_sparse_samples_per_s: float | None = None
    repeats: int | None = None
    samples_per_repeat: int | None = None
    warmup_rounds: int | None = None
    modes_searched: list[str] | None = None
    variants_searched: list[str] | None = None
    search_seconds: float | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    samples_file: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any({"batch_size", "sequence_length"} - size.keys() for size in self.curve):
            raise ValueError("speed.curve holds a size without its batch_size or sequence_length")
        for name in ("latency_dense_ms", "latency_sparse_ms", "speedup", "speedup_low", "speedup_high"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"speed.{name} is {value}: it is above 0, and None where nothing was timed")
        check_entries("speed.curve", self.curve, CURVE_HINTS)


@dataclass(frozen=True, kw_only=True)
class Size(CheckedFields):
    """Bytes: of all weights as stored for inference, what the network keeps on its device (weights and packed operands), and
    the peak of one forward pass there.

    `dense_bytes_per_layer`: prunable layers that the sparse network still holds dense -> bytes of their weight.
    """

    weight_bytes_dense: int | None = None
    weight_bytes_sparse: int | None = None
    resident_bytes_dense: int | None = None
    resident_bytes_sparse: int | None = None
    peak_memory_bytes_dense: int | None = None
    peak_memory_bytes_sparse: int | None = None
    dense_bytes_per_layer: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kernels(CheckedFields):
    """What the swap chose.

    `kernel_per_layer`: layer -> {"chosen", "family", "density", "weight_bytes", "latency_us", "candidates": kernel ->
    microseconds, "roofline_fraction", "relative_error", "unsupported": kernel -> reason, "notes", "launch": its parameters,
    "why_dense" where a pruned layer runs dense, "m", "k", "n" of its product}, keys absent where nothing is known. Shares are
    fractions of the prunable layers, by count and by dense floating-point operations, that run a sparse kernel.
    `fused_blocks`: how encoder blocks were rewritten, or why they were not -> number of blocks; `block_variants_ms`: chain of
    blocks -> way of running it -> milliseconds, where timed. `block_norms`: LayerNorms of feature-major blocks by type, layouts
    and sizes -> {"chosen", "launch", "latency_us", "candidates", "unsupported"}, as those of a layer.
    """

    kernel_per_layer: dict[str, dict[str, Any]] = field(default_factory=dict)
    sparse_layer_share: float | None = None
    sparse_flops_share: float | None = None
    fused_blocks: dict[str, int] = field(default_factory=dict)
    block_variants_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    block_norms: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_entries("kernels.kernel_per_layer", self.kernel_per_layer.values(), LAYER_HINTS)


@dataclass(frozen=True, kw_only=True)
class Cost(CheckedFields):
    """Wall seconds of the stages, as first made, those of killed runs that they went on from included; `dense_reused`:
    the dense weights were found finished.

    `recovery_steps`, `recovery_epochs`, `recovery_samples`: optimizer steps, passes over the data and rows of batches that the
    recovery trained on, over all rounds and processes, as the training loop counted them; 0 of a recovery that trains nothing.
    `dense_steps`, `dense_samples`: the same of the dense network. `dense_continued_seconds`: of training it on.
    """

    train_dense_seconds: float | None = None
    prune_seconds: float | None = None
    recover_seconds: float | None = None
    recovery_steps: int | None = None
    recovery_epochs: float | None = None
    recovery_samples: int | None = None
    dense_steps: int | None = None
    dense_samples: int | None = None
    dense_continued_seconds: float | None = None
    measure_seconds: float | None = None
    dense_reused: bool | None = None
