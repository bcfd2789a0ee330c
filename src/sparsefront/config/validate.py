"""Every check before anything is downloaded or trained: root keys, single groups, and what must go together."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from sparsefront_kernels import labeled
from torch import nn

from sparsefront.allocation.base import MeasuringAllocation
from sparsefront.allocation.latency_search import LatencySearch
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import CONTROLS, GROUPS, STAGES
from sparsefront.config.settings import (
    build_settings,
    check_root,
    field_of,
    named_as_typed,
    options_of,
    plain,
    searched_folders,
)
from sparsefront.errors import InvalidSetting, did_you_mean, first_line
from sparsefront.inference.precision import MULTIPLE, unsupported_reason
from sparsefront.models.base import prunable_layers
from sparsefront.networks import in_eval_mode
from sparsefront.patterns.depth import Depth
from sparsefront.pruning.block_by_block import require_chain
from sparsefront.pruning.collapse import require_effect
from sparsefront.pruning.layers import (
    narrower_than_tiles,
    nothing_fits,
    plan_pruning,
    require_matches,
    require_no_groups,
    require_whole_groups,
)
from sparsefront.pruning.masked_weights import require_none_dense, require_none_shared
from sparsefront.pruning.prune_blocks import removable_blocks
from sparsefront.pruning.storage_check import require_storable
from sparsefront.results.record import OF_DATASET, SPEEDUPS_LOW, Result
from sparsefront.search.space import require_choosable

# What must go together in how long networks are trained, before anything is.

log = logging.getLogger(__name__)


def check_checkpoint(experiment: Experiment) -> None:
    """Without epochs there must be a finished checkpoint to take as the dense network.

    Raises:
        InvalidSetting: the model starts from random weights.
    """
    if experiment.recipe.epochs == 0 and experiment.model.checkpoint is None:
        allowed = (
            f"takes a finished checkpoint as the dense network, and model {experiment.choices['model']} starts from random "
            "weights: name a checkpoint (model.path, or another model), or train at least 1 epoch"
        )
        raise InvalidSetting("recipe.epochs", 0, allowed)


def with_possible_control(experiment: Experiment) -> Experiment:
    """Without a control where no training follows pruning: a sweep over recoveries, or with pattern=dense, goes on. Where no
    teacher is in it, dense_distilled is dense_continued.
    """
    if experiment.control is None:
        return experiment
    if (recovery := experiment.continued_recovery) is not None:
        if experiment.control != "dense_distilled" or recovery.has_teacher:
            return experiment
        log.info("control=dense_distilled: recovery=%s has no teacher, so that this is dense_continued", recovery.name)
        return replace(experiment, control="dense_continued")
    why = f"recovery={experiment.recovery.name}" if experiment.pattern.prunes else f"pattern={experiment.pattern.name}"
    log.info("control=%s: skipped, %s trains nothing that the dense network could match", experiment.control, why)
    return replace(experiment, control=None)


# What must go together where nothing is timed, before anything is trained.


def note_untimed_lengths(experiment: Experiment) -> None:
    """A line where the data's own lengths are asked for and nothing is timed, as in a study that times its first seed alone; the
    record says so too.
    """
    if experiment.measure.lengths == "fixed":
        return
    if not experiment.measure.latency:
        log.info("measure.lengths=dataset: skipped, measure.latency=false times nothing")
    elif not experiment.continues_to("measure"):
        log.info("measure.lengths=dataset: skipped, stages ends with %s, before measure", experiment.stages[-1])


def check_untimed(experiment: Experiment) -> None:
    """Kernels are chosen by their times.

    Raises:
        InvalidSetting: kernels are to be swapped in, and `measure.latency` is false.
    """
    if experiment.swaps and not experiment.measure.latency:
        allowed = "kernels are chosen by timing them: add kernel=none, or leave it true"
        raise InvalidSetting("measure.latency", False, allowed)


# What must go together in low precision, before anything is trained.


def check_precision(experiment: Experiment) -> None:
    """The device must be able to run what is asked for, and what was pruned needs kernels that run it.

    Raises:
        InvalidSetting: a GPU that cannot, weights in fp32 there, or a pruned network that is measured without kernels.
    """
    precision, measure, kernel = experiment.precision, experiment.measure, experiment.kernel
    device, dtype = measure.torch_device, measure.torch_dtype
    precision.check(device, dtype)
    for low in measure.dense_low or ():
        if (why := unsupported_reason(low, device, dtype)) is not None:
            raise InvalidSetting("measure.dense_low", measure.dense_low, why)
    if kernel.name is not None and (own := labeled(kernel.name)[0].precision) not in ("none", precision.of_dense):
        raise InvalidSetting("kernel.name", kernel.name, f"multiplies in {own}: add precision={own}")
    if not precision.is_low:
        return
    if experiment.pattern.prunes and not experiment.swaps and "measure" in experiment.stages:
        key, value = ("kernel", experiment.choices["kernel"]) if kernel.swaps_nothing else ("stages", "without swap")
        allowed = f"swaps nothing in, and precision={precision.mode} is that of kernels"
        raise InvalidSetting(key, value, f"{allowed}: kernel=auto; pattern=dense is the dense network in it")


def check_quantizable(experiment: Experiment, net: nn.Module, layers: Iterable[str]) -> None:
    """In a low precision at least one layer must be able to run, else the result would be of none.

    Args:
        net: also on the meta device.
        layers: those of it that may be pruned.
    """
    if not experiment.precision.is_low:
        return
    shapes = [layer.weight.shape for name in layers if isinstance(layer := net.get_submodule(name), nn.Linear)]
    if not any(n % MULTIPLE == k % MULTIPLE == 0 for n, k in shapes):
        allowed = f"runs no layer of model {experiment.choices['model']}: Linears of multiples of {MULTIPLE} it would"
        raise InvalidSetting("precision", experiment.precision.mode, f"{allowed}; convolutions stay in 16 bits")


# A sweeper that optimizes needs numbers that the record will hold: rejected before training where it will not.

# What a record lacks where nothing is pruned, where no sparse kernels run, on a CPU. A test compares them with real records.
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
OF_KERNELS = {
    "sparse",
    "sparse_standard_error",
    "val_sparse",
    "val_sparse_standard_error",
    "latency_sparse_ms",
    "latency_sparse_p20_ms",
    "latency_sparse_p80_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "latency_sparse_dataset_ms",
    "speedup_dataset",
    "speedup_dataset_low",
    "speedup_dataset_high",
    *OF_BOTH,
    "throughput_sparse_samples_per_s",
    "weight_bytes_sparse",
    "resident_bytes_sparse",
    "peak_memory_bytes_sparse",
    "sparse_layer_share",
    "sparse_flops_share",
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
OF_GPU = {"gpu_clock_mhz", "peak_memory_bytes_dense", "peak_memory_bytes_sparse"}


def optimizing_sweeper() -> str | None:
    """The class of the sweeper that reads what a run returns; None in a single run and under Hydra's own sweeper."""
    hydra = HydraConfig.get()
    name = str(hydra.sweeper.get("_target_")).rpartition(".")[2]
    return None if hydra.mode is not RunMode.MULTIRUN or name == "BasicSweeper" else name


def require_optimized_values(experiment: Experiment) -> None:
    """Where a sweeper optimizes, every value of `optimize` must be a number that this run's record will hold, and none of
    the reporting split.

    Raises:
        InvalidSetting: names the value and why there will be none, or that nothing is held out to choose by.
    """
    if (sweeper := optimizing_sweeper()) is None:
        return
    if experiment.val_seen:
        seen = f"{experiment.model.checkpoint} may have been trained on the held-out part of {experiment.dataset.name}"
        raise InvalidSetting(
            "optimize", list(experiment.optimize), f"{seen}: {sweeper} has nothing to choose by; use -m alone"
        )
    require_choosable(experiment.optimize, sweeper)
    if experiment.dataset.valid_fraction == 0:
        allowed = (
            f"leaves nothing to choose by, and {sweeper} chooses: hold a part of train out, or sweep with a plain -m"
        )
        raise InvalidSetting("dataset.valid_fraction", experiment.dataset.valid_fraction, allowed)
    for name in experiment.optimize:
        if (why := _why_absent(name, experiment)) is not None:
            raise InvalidSetting("optimize", name, f"{why}, so {sweeper} would have nothing to optimize")


def require_found(result: Result, names: tuple[str, ...]) -> None:
    """The same of a finished record: some values (the fused graph's latency, say) no configuration predicts."""
    if (sweeper := optimizing_sweeper()) is None:
        return
    for name in names:
        if result.value_of(name) is None:
            raise InvalidSetting("optimize", name, f"this run's record has none, so {sweeper} has nothing to optimize")


def _why_absent(name: str, experiment: Experiment) -> str | None:
    """Why the record will not hold a value; None where it will, as far as the configuration tells."""
    if not experiment.continues_to("report"):
        return f"there will be no record: stages ends with {experiment.stages[-1]}"
    low, on_cpu = experiment.precision.is_low, experiment.measure.torch_device.type == "cpu"
    dense = OF_PRUNED | OF_SHARES if low else OF_PRUNED | OF_KERNELS
    if not experiment.pattern.prunes and name in dense:
        return f"a run with pattern={experiment.pattern.name} does not measure {name}"
    if not experiment.swaps and experiment.pattern.prunes and name in OF_KERNELS:
        without = f"kernel={experiment.choices['kernel']}" if "swap" in experiment.stages else "stages without swap"
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
    if experiment.measure.torch_device.type == "cpu" and name in OF_GPU:
        return f"a run with measure.device=cpu does not measure {name}"
    return None


BASES = {f.name: f.type for f in fields(Experiment) if f.name in GROUPS}


def validate(config: DictConfig, *, trust: Sequence[str] | None = None) -> Experiment:
    """Build the settings of every group and check that they go together.

    Args:
        config: the composed configuration of one run.
        trust: of a configuration that a stored run recorded, the packages besides sparsefront whose classes it may name; None:
            it is the user's own, and may name any.
    Raises:
        InvalidSetting: the first thing that cannot work: its key, its value, what is allowed.
    """
    check_root(config)
    choices = _choices()
    parts = {group: _build(group, config, choices, trust) for group in ("model", "dataset")}
    # first: no recipe can be right for an impossible pair
    _check_data_and_model(parts["dataset"], parts["model"], choices)
    choices["recipe"] = _recipe_taken(choices)
    parts |= {group: _build(group, config, choices, trust) for group in GROUPS if group not in parts}
    parts["allocation"].check_pattern(parts["pattern"])
    experiment = Experiment(
        choices=choices,
        settings={group: plain(config[group]) for group in GROUPS},
        sparsity=float(config.sparsity) if parts["pattern"].prunes else 0.0,
        granularity=config.granularity,
        seed=config.seed,
        recovery_seed=config.recovery.seed,
        control=config.control,
        stages=tuple(stage for stage in STAGES if stage in config.stages),
        reuse=config.reuse,
        optimize=tuple(map(field_of, config.optimize)),
        cache_dir=Path(config.cache_dir),
        results_dir=Path(config.results_dir),
        output_dir=Path(HydraConfig.get().runtime.output_dir),
        sweep=_sweep_name(),
        **parts,
    )
    _check_devices(experiment)
    _check_timed_lengths(experiment)
    note_untimed_lengths(experiment)
    check_untimed(experiment)
    check_precision(experiment)
    check_checkpoint(experiment)
    _check_recovery(experiment)
    experiment = with_possible_control(experiment)
    _check_pattern(experiment)
    require_optimized_values(experiment)
    return _at_commits(experiment)


def _choices() -> dict[str, str]:
    return {group: name for group, name in HydraConfig.get().runtime.choices.items() if group in GROUPS}


def _option_folders() -> list[Path]:
    return searched_folders(HydraConfig.get().runtime.config_sources)


def _recipe_taken(choices: dict[str, str]) -> str:
    """The recipe of the pair of model and data set, or the default one, which holds where the pair has none."""
    chosen, pair = choices["recipe"], f"{choices['model']}_{choices['dataset']}"
    recipes = options_of("recipe", _option_folders())
    if chosen in recipes:
        return chosen
    if chosen != pair:
        raise InvalidSetting("recipe", chosen, f"{did_you_mean(chosen, list(recipes))}there are {', '.join(recipes)}")
    log.info("recipe: there is none named %s, so that the values of recipe=default hold", pair)
    return "default"


def _sweep_name() -> str | None:
    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir).name if hydra.mode is RunMode.MULTIRUN else None


def _build(group: str, config: DictConfig, choices: dict[str, str], trust: Sequence[str] | None) -> Any:
    with named_as_typed(config, choices, _option_folders()):
        return build_settings(group, config[group], choices.get(group), base=BASES[group], trust=trust)


def _call(group: str, check: Any, *arguments: Any) -> Any:
    """Run a part's own check; its message gets the group's name, unless it is about the sparsity, which is a root key."""
    try:
        return check(*arguments)
    except InvalidSetting as error:
        if error.key == "sparsity":
            raise
        raise error.within(group) from error


def _check_devices(experiment: Experiment) -> None:
    _call("trainer", experiment.trainer.check)
    _call("logger", experiment.logger.check)
    _call("report", experiment.report.check)


def _check_data_and_model(dataset: Any, model: Any, choices: dict[str, str]) -> None:
    _call("dataset", lambda: dataset.split_version)
    _call("dataset", dataset.check)
    kind = _call("dataset", lambda: dataset.info).kind
    if kind not in model.kinds:
        raise InvalidSetting(
            "dataset", choices["dataset"], f"asks for {kind}; model {choices['model']} serves {', '.join(model.kinds)}"
        )
    _call("model", model.check)


def _at_commits(experiment: Experiment) -> Experiment:
    """The same with branches of a hub replaced by commits: what is loaded, recorded and part of keys is then one thing."""
    return replace(
        experiment,
        model=_call("model", experiment.model.at_commit),
        dataset=_call("dataset", experiment.dataset.at_commit, experiment.cache_dir / "data"),
    )


def _check_timed_lengths(experiment: Experiment) -> None:
    """Every sequence length that is timed must be one that the network takes; for images one is ignored, several rejected."""
    info, measure = experiment.dataset.info, experiment.measure
    key, lengths = "measure.sequence_length", measure.sequence_lengths
    _check_timed_image_size(experiment)
    if measure.parts and info.kind != "translation":
        data = experiment.choices["dataset"]
        raise InvalidSetting("measure.parts", measure.parts, f"is for translation; {data} asks for {info.kind}: use []")
    if info.sequence_length is None:
        if len(lengths) > 1:
            raise InvalidSetting(key, measure.sequence_length, "images have no length to time: leave it null")
        if measure.lengths == "dataset":
            data = experiment.choices["dataset"]
            raise InvalidSetting("measure.lengths", measure.lengths, f"is for text; {data} holds images: use fixed")
        return
    longest = _call("model", experiment.model.longest_sequence, info)
    if longest is not None and any(length is not None and length > longest for length in lengths):
        model = experiment.choices["model"]
        raise InvalidSetting(key, measure.sequence_length, f"model {model} takes at most {longest} tokens")


def _check_timed_image_size(experiment: Experiment) -> None:
    """The network must take images of that size: followed on the meta device."""
    info, size = experiment.dataset.info, experiment.measure.image_size
    if size is None:
        return
    key, model = "measure.image_size", experiment.choices["model"]
    if info.image_size is None:
        raise InvalidSetting(key, size, f"is for images; {experiment.choices['dataset']} holds text: leave it null")
    net = _call("model", experiment.model.skeleton, info)
    try:
        with in_eval_mode(net), torch.no_grad():
            net(x=torch.empty(2, info.channels, size, size, device="meta"))
    except NotImplementedError:  # an operator without shapes of its own: the run itself will tell
        return
    except (RuntimeError, ValueError, AssertionError) as error:
        why = f"model {model} for images of {info.image_size} pixels cannot take these ({first_line(error)})"
        raise InvalidSetting(key, size, f"{why}; leave it null or set dataset.image_size") from error


def _check_recovery(experiment: Experiment) -> None:
    schedule, recovery = experiment.schedule, experiment.recovery
    recovery.check_schedule(schedule, experiment.sparsity)
    if experiment.pattern.prunes:
        schedule.check_sparsity(experiment.sparsity)
        schedule.check_rounds(experiment.sparsity)
        schedule.check_pattern(experiment.pattern)
        schedule.check_blocks(experiment.pattern, experiment.sparsity)
        recovery.check_pattern(experiment.pattern)
        recovery.check(experiment.recovery_setup())
        experiment.importance.check(experiment.pruning)


def _check_granularity(experiment: Experiment) -> None:
    """The root's must reach the pattern, unless `pattern.granularity` was typed beside it: that says what to take."""
    given, pattern = experiment.granularity, experiment.pattern
    if given is None:
        return
    if not pattern.uses_granularity:
        log.info("granularity=%s: pattern %s has no group size and ignores it", given, pattern.name)
        return
    own = pattern.granularity  # type: ignore[attr-defined]
    typed = any(text.lstrip("+").startswith("pattern.granularity=") for text in HydraConfig.get().overrides.task)
    if typed or str(own) == str(given):
        return
    name = Path("pattern") / f"{experiment.choices['pattern']}.yaml"
    file = next((folder / name for folder in _option_folders() if (folder / name).is_file()), name)
    line = f"granularity: ${{default:${{granularity}},{own}}}"
    how = "change its line to" if "granularity" in experiment.settings["pattern"] else "add"
    raise InvalidSetting("granularity", given, f"{file} does not read it: {how} `{line}`")


def _check_pattern(experiment: Experiment) -> None:
    """The pattern must fit at least one layer, and a forced kernel must be able to run what it makes."""
    pattern = experiment.pattern
    _check_granularity(experiment)
    if pattern.prunes:
        _call("pattern", pattern.check_sparsity, experiment.sparsity)
        _call("allocation", experiment.allocation.check_sparsity, experiment.sparsity)
    net = _call("model", experiment.model.skeleton, experiment.dataset.info)
    prunable = _call("model", prunable_layers, experiment.model, net)
    check_quantizable(experiment, net, prunable)
    if not pattern.prunes:
        return
    _call("recipe", require_matches, experiment.recipe.ignore, net, prunable)
    ignored = experiment.recipe.ignored(prunable)
    plan = plan_pruning(
        net,
        prunable,
        pattern=pattern,
        sparsity=experiment.sparsity,
        ignored=ignored,
        reads_inputs=experiment.pruning.reads_inputs,
    )
    if experiment.recovery.reads_inputs:
        require_no_groups(net, plan.layers, experiment.recovery.name)
    try:
        require_whole_groups(plan, pattern, ignored)
    except InvalidSetting as error:
        raise error if error.key == "granularity" else error.within("pattern") from error
    if not plan.layers:
        raise nothing_fits(plan, pattern, experiment.recipe.ignore)
    if (narrower := narrower_than_tiles(plan, pattern)) is not None:
        log.info("%s", narrower)
    _call("recipe", require_none_dense, net, plan.layers, "ignore", experiment.recipe.ignore)
    shapes = {name: plan.shapes[name] for name in plan.layers}
    _call("report", experiment.report.check_layers, shapes)
    _call("allocation", experiment.allocation.check_layers, pattern, shapes, experiment.sparsity)
    weight_shapes = {name: tuple(net.get_submodule(name).weight.shape) for name in plan.layers}
    if isinstance(pattern, Depth):
        try:
            removable_blocks(net, plan.layers, ignored, pattern, experiment.sparsity)
        except InvalidSetting as error:
            raise error.within("recipe") if error.key == "ignore" else error from None
        return
    require_chain(experiment.importance, net, plan.layers)
    require_effect(pattern, experiment.allocation, weight_shapes, experiment.sparsity)
    require_storable(pattern, shapes.values(), experiment.sparsity)
    _check_search(experiment, net, plan.layers)
    try:
        experiment.kernel.check_against(
            pattern=pattern,
            sparsity=experiment.sparsity,
            shapes=shapes,
            device=experiment.measure.torch_device,
            dtype=experiment.measure.torch_dtype,
            precision=experiment.precision.of_dense or "none",
        )
    except InvalidSetting as error:
        raise error.within("kernel") from error


def _check_search(experiment: Experiment, net: nn.Module, layers: Iterable[str]) -> None:
    """Check, before anything is trained, that kernels are swapped in, which is what a search for a latency is about, and that it
    can choose for each layer by itself.

    Args:
        net: also on the meta device.
        layers: those of it that will be pruned.
    Raises:
        InvalidSetting: they are not, or layers share a weight.
    """
    if not isinstance(experiment.allocation, MeasuringAllocation):
        return
    require_none_shared(net, layers, experiment.allocation.name)
    if experiment.kernel.swaps_nothing:
        allowed = (
            f"swaps no kernel in: nothing gets faster, so that allocation={experiment.allocation.name} finds nothing"
        )
        raise InvalidSetting("kernel", experiment.choices["kernel"], allowed)
