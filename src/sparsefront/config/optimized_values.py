"""Check before training that the record will contain the values that an optimizing sweeper needs."""

import re

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from sparsefront.allocation.latency_search import LatencySearch
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import CONTROLS
from sparsefront.errors import InvalidSetting
from sparsefront.results.record import OF_DATASET, Result

# Regular expressions of the values missing from records without pruning, without sparse kernels, or on a CPU. A test compares
# them with real records.
OF_PRUNED = (
    r"(val_)?masked(_standard_error)?|(prune|recover)_seconds|recovery_(seed|steps|epochs|samples|samples_per_s)"
)
OF_BOTH = r"speedup_low_precision(_dataset)?(_low|_high)?"
OF_LOW_TIMING = rf"latency_dense_low(_p20|_p80|_dataset)?_ms|throughput_dense_low_samples_per_s|{OF_BOTH}"
OF_DENSE_LOW = rf"(val_)?dense_low(_standard_error)?|{OF_LOW_TIMING}"
OF_SPARSE_TIMING = (
    r"latency_sparse(_p20|_p80|_dataset)?_ms|speedup(_dataset)?(_low|_high)?|throughput_sparse_samples_per_s"
)
OF_SHARES = r"sparse_(layer|flops)_share"
OF_SWAPPED = rf"{OF_SPARSE_TIMING}|{OF_BOTH}|[a-z]+(_memory)?_bytes_sparse|{OF_SHARES}"
OF_KERNELS = rf"(val_)?sparse(_standard_error)?|{OF_SWAPPED}"
OF_FORWARD = {f"throughput_{side}_samples_per_s" for side in ("dense", "sparse", "dense_low")}
OF_DECODE = {  # name -> the corresponding value of a forward
    **{f"tokens_per_s_{side}": f"throughput_{side}_samples_per_s" for side in ("dense", "sparse", "dense_low")},
    **{f"latency_prefill_{side}_ms": f"latency_{side}_ms" for side in ("dense", "sparse")},
    "cache_length": "latency_dense_ms",
}
OF_TIMING = (
    r"(fused_dense_latency|latency_dense(_p20|_p80|_dataset)?)_ms|throughput_dense_samples_per_s|(resident|peak_memory)_bytes_dense"
    rf"|gpu_clock_mhz|repeats|samples_per_repeat|warmup_rounds|autotune_seconds|{OF_LOW_TIMING}"
)
OF_CONTROL = rf"(?:val_)?({'|'.join(CONTROLS)})(?:_standard_error|_seconds)?"


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
    sweeper = optimizing_sweeper()
    if sweeper is None:
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
        why = _why_absent(name, experiment)
        if why is not None:
            raise InvalidSetting("optimize", name, f"{why}, so {sweeper} would have nothing to optimize")


def require_found(result: Result, names: tuple[str, ...]) -> None:
    """The same check for a finished record: some values (such as the fused graph's latency) cannot be predicted."""
    sweeper = optimizing_sweeper()
    if sweeper is None:
        return
    for name in names:
        if result.value_of(name) is None:
            raise InvalidSetting("optimize", name, f"this run's record has none, so {sweeper} has nothing to optimize")


def _why_absent(name: str, experiment: Experiment) -> str | None:
    """Why the record will lack a value; None if it will have it, according to the configuration."""
    mode, measure, pattern = experiment.measure.mode, experiment.measure, experiment.pattern
    if name in (OF_DECODE if mode != "decode" else OF_FORWARD):
        return f"a run with measure.mode={mode} does not measure {name}"
    if not experiment.continues_to("report"):
        return f"there will be no record: stages ends with {experiment.stages[-1]}"
    low, on_cpu, leaves_dense = experiment.precision.is_low, measure.torch_device.type == "cpu", experiment.leaves_dense
    of_dense = f"{OF_PRUNED}|{OF_SHARES if low else OF_KERNELS}"
    of_kernels = OF_SWAPPED if leaves_dense else OF_KERNELS
    of_cpu = f"{OF_LOW_TIMING}|{OF_SPARSE_TIMING}" if low else OF_LOW_TIMING
    unswapped = f"kernel={experiment.choices['kernel']}" if "swap" in experiment.stages else "stages without swap"
    unswapped = "recovery.dense_after, which leaves a dense network," if leaves_dense else unswapped
    measured = OF_DECODE.get(name, name)
    match = re.fullmatch(OF_CONTROL, measured)
    control = match[1] if match else experiment.control
    idle = "trains nothing" if control == "dense_continued" else "has no teacher"
    rules = (  # whether a run lacks these values, and what sort of run it is
        (not pattern.prunes, of_dense, f"with pattern={pattern.name}"),
        (pattern.prunes and not experiment.swaps, of_kernels, f"with {unswapped}"),
        (pattern.takes_blocks, OF_SHARES, f"with pattern={pattern.name}, which leaves a dense network,"),
        (not measure.latency, OF_TIMING, "with measure.latency=false"),
        (not (low and pattern.prunes), "quantization_error", "with a sparse network in 16 bits (precision=none)"),
        (not experiment.dense_low, OF_DENSE_LOW, "without measure.dense_low"),
        (on_cpu, of_cpu, "on a CPU, which has references alone in low precision,"),
        (measure.lengths == "fixed", "|".join(OF_DATASET), "with measure.lengths=fixed"),
        (control != experiment.control, OF_CONTROL, f"without control={control}, or whose recovery {idle},"),
        (not isinstance(experiment.allocation, LatencySearch), "latency_predicted_ms", "without a latency search"),
        (experiment.shrinking is None, "weights_left|theoretical_flops_left", "with structured=none"),
        (on_cpu, "gpu_clock_mhz|peak_memory_bytes_(dense|sparse)", "with measure.device=cpu"),
        (not experiment.trainer.on_gpu, r"recovery_gpu_busy_share|\w+_joules", "that trains on a CPU"),
        (not experiment.unlabeled, "recovery_unlabeled_samples", "without dataset.unlabeled=true"),
    )
    sorts = (sort for lacks, names, sort in rules if lacks and re.fullmatch(names, measured))
    return next((f"a run {sort} does not measure {name}" for sort in sorts), None)
