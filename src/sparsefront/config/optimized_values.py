"""Check before training that the record will contain the values that an optimizing sweeper needs."""

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from sparsefront.allocation.latency_search import LatencySearch
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import CONTROLS
from sparsefront.errors import InvalidSetting
from sparsefront.results.record import OF_DATASET, SPEEDUPS_LOW, Result

# Values missing from records without pruning, without sparse kernels, or on a CPU. A test compares them with real records.
OF_PRUNED = {
    "masked",
    "masked_standard_error",
    "val_masked",
    "val_masked_standard_error",
    "prune_seconds",
    "recover_seconds",
    "recovery_seed",
    "recovery_steps",
    "recovery_epochs",
    "recovery_samples",
    "recovery_samples_per_s",
}
OF_BOTH = {
    *SPEEDUPS_LOW,
    *("speedup_low_precision_dataset", "speedup_low_precision_dataset_low", "speedup_low_precision_dataset_high"),
}
OF_LOW_TIMING = {
    *("latency_dense_low_ms", "latency_dense_low_p20_ms", "latency_dense_low_p80_ms", "latency_dense_low_dataset_ms"),
    "throughput_dense_low_samples_per_s",
    *OF_BOTH,
}
OF_DENSE_LOW = {
    *("dense_low", "dense_low_standard_error", "val_dense_low", "val_dense_low_standard_error"),
    *OF_LOW_TIMING,
}
OF_SPARSE_TIMING = {
    *("latency_sparse_ms", "latency_sparse_p20_ms", "latency_sparse_p80_ms", "latency_sparse_dataset_ms"),
    *("speedup", "speedup_low", "speedup_high", "speedup_dataset", "speedup_dataset_low", "speedup_dataset_high"),
    "throughput_sparse_samples_per_s",
}
OF_SPARSE_QUALITY = {"sparse", "sparse_standard_error", "val_sparse", "val_sparse_standard_error"}
OF_KERNELS = {
    *OF_SPARSE_QUALITY,
    *OF_SPARSE_TIMING,
    *OF_BOTH,
    *("weight_bytes_sparse", "resident_bytes_sparse", "peak_memory_bytes_sparse"),
    *("sparse_layer_share", "sparse_flops_share"),
}
OF_FORWARD = {f"throughput_{side}_samples_per_s" for side in ("dense", "sparse", "dense_low")}
OF_DECODE = {  # name -> the corresponding value of a forward
    **{f"tokens_per_s_{side}": f"throughput_{side}_samples_per_s" for side in ("dense", "sparse", "dense_low")},
    **{f"latency_prefill_{side}_ms": f"latency_{side}_ms" for side in ("dense", "sparse")},
    "cache_length": "latency_dense_ms",
}
OF_QUANTIZED = {"quantization_error"}
OF_SHARES = {"sparse_layer_share", "sparse_flops_share"}
OF_TIMING = {
    "latency_dense_ms",
    "latency_dense_p20_ms",
    "latency_dense_p80_ms",
    "latency_dense_dataset_ms",
    "fused_dense_latency_ms",
    "throughput_dense_samples_per_s",
    "resident_bytes_dense",
    "gpu_clock_mhz",
    "peak_memory_bytes_dense",
    "repeats",
    "samples_per_repeat",
    "warmup_rounds",
    "autotune_seconds",
    *OF_LOW_TIMING,
}
OF_CONTROL = {
    part.format(control): control
    for control in CONTROLS
    for part in ("{}", "{}_standard_error", "{}_seconds", "val_{}", "val_{}_standard_error")
}
OF_SEARCH = {"latency_predicted_ms"}
OF_STRUCTURED = {"weights_left", "theoretical_flops_left"}
OF_GPU = {"gpu_clock_mhz", "peak_memory_bytes_dense", "peak_memory_bytes_sparse"}
OF_UNLABELED = {"recovery_unlabeled_samples"}
OF_TRAINING_GPU = {"recovery_gpu_busy_share"}


def optimizing_sweeper() -> str | None:
    """The class of a sweeper that uses a run's return value; None in a single run and for Hydra's own sweeper."""
    hydra = HydraConfig.get()
    name = str(hydra.sweeper.get("_target_")).rpartition(".")[2]
    return None if hydra.mode is not RunMode.MULTIRUN or name == "BasicSweeper" else name


def require_optimized_values(experiment: Experiment) -> None:
    """Check that every value of `optimize` will be in this run's record.

    Raises:
        InvalidSetting: names the value and why it will be missing, or that nothing is held out.
    """
    if (sweeper := optimizing_sweeper()) is None:
        return
    if experiment.val_seen:
        seen = f"{experiment.model.checkpoint} may have been trained on the held-out part of {experiment.dataset.name}"
        raise InvalidSetting(
            "optimize", list(experiment.optimize), f"{seen}: {sweeper} has nothing to choose by; use -m alone"
        )
    if experiment.dataset.valid_fraction == 0:
        allowed = (
            f"leaves nothing to choose by, and {sweeper} chooses: hold a part of train out, or sweep with a plain -m"
        )
        raise InvalidSetting("dataset.valid_fraction", experiment.dataset.valid_fraction, allowed)
    for name in experiment.optimize:
        if (why := _why_absent(name, experiment)) is not None:
            raise InvalidSetting("optimize", name, f"{why}, so {sweeper} would have nothing to optimize")


def require_found(result: Result, names: tuple[str, ...]) -> None:
    """The same check for a finished record: some values (such as the fused graph's latency) cannot be predicted."""
    if (sweeper := optimizing_sweeper()) is None:
        return
    for name in names:
        if result.value_of(name) is None:
            raise InvalidSetting("optimize", name, f"this run's record has none, so {sweeper} has nothing to optimize")


def _why_absent(name: str, experiment: Experiment) -> str | None:
    """Why the record will lack a value; None if it will have it, according to the configuration."""
    if name in (OF_DECODE if (mode := experiment.measure.mode) == "forward" else OF_FORWARD):
        return f"a run with measure.mode={mode} does not measure {name}"
    why = _why_not_measured(alike := OF_DECODE.get(name, name), experiment)
    return None if why is None else why.replace(f"measure {alike}", f"measure {name}")


def _why_not_measured(name: str, experiment: Experiment) -> str | None:
    if not experiment.continues_to("report"):
        return f"there will be no record: stages ends with {experiment.stages[-1]}"
    low, on_cpu = experiment.precision.is_low, experiment.measure.torch_device.type == "cpu"
    dense = OF_PRUNED | OF_SHARES if low else OF_PRUNED | OF_KERNELS
    if not experiment.pattern.prunes and name in dense:
        return f"a run with pattern={experiment.pattern.name} does not measure {name}"
    measured_dense = experiment.leaves_dense and name in OF_SPARSE_QUALITY
    if not (experiment.swaps or measured_dense) and experiment.pattern.prunes and name in OF_KERNELS:
        without = f"kernel={experiment.choices['kernel']}" if "swap" in experiment.stages else "stages without swap"
        without = "recovery.dense_after, which leaves a dense network," if experiment.leaves_dense else without
        return f"a run with {without} does not measure {name}"
    if experiment.pattern.takes_blocks and name in OF_SHARES:
        return f"a run with pattern={experiment.pattern.name}, which leaves a dense network, does not measure {name}"
    if not experiment.measure.latency and name in OF_TIMING:
        return f"a run with measure.latency=false does not measure {name}"
    if name in OF_QUANTIZED and not (low and experiment.pattern.prunes):
        return f"a run whose sparse network is in 16 bits, as with precision=none, does not measure {name}"
    if name in OF_DENSE_LOW and not experiment.dense_low:
        return f"a run without measure.dense_low does not measure {name}"
    if on_cpu and (name in OF_LOW_TIMING or (low and name in OF_SPARSE_TIMING)):
        return f"a CPU, which has references alone in low precision, does not measure {name}"
    if experiment.measure.lengths == "fixed" and name in OF_DATASET:
        return f"a run with measure.lengths=fixed does not measure {name}"
    if (control := OF_CONTROL.get(name, experiment.control)) != experiment.control:
        idle = "trains nothing" if control == "dense_continued" else "has no teacher"
        return f"a run without control={control}, or whose recovery {idle}, does not measure {name}"
    if not isinstance(experiment.allocation, LatencySearch) and name in OF_SEARCH:
        return f"a run without allocation=latency_search does not predict {name}"
    if experiment.shrinking is None and name in OF_STRUCTURED:
        return f"a run with structured=none does not count {name}"
    if experiment.measure.torch_device.type == "cpu" and name in OF_GPU:
        return f"a run with measure.device=cpu does not measure {name}"
    if not experiment.trainer.on_gpu and name in OF_TRAINING_GPU:
        return f"a run that trains on a CPU does not measure {name}"
    if not experiment.unlabeled and name in OF_UNLABELED:
        return f"a run without dataset.unlabeled=true does not count {name}"
    return None
