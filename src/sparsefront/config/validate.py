"""All checks before anything is downloaded or trained: root keys, single groups, and combinations."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import CONTROLS, GROUPS, STAGES
from sparsefront.config.settings import (
    build_settings,
    check_root,
    field_of,
    list_config_folders,
    name_as_typed,
    options_of,
    plain,
)
from sparsefront.data.text_dataset import TextDataset
from sparsefront.errors import InvalidSetting, did_you_mean, first_line, keys_of
from sparsefront.inference.precision import MULTIPLE, explain_refusal
from sparsefront.measure.decode import int8_unavailable_reason
from sparsefront.measure.settings import INT8_WEIGHT_ONLY, require_cache
from sparsefront.models.base import prunable_layers
from sparsefront.models.unpadded import KEY, unpad
from sparsefront.networks import in_eval_mode, names_left, remove_blocks
from sparsefront.options import options_where
from sparsefront.patterns.base import to_record
from sparsefront.patterns.depth import Depth
from sparsefront.patterns.width import units_to_prune
from sparsefront.progress import counted
from sparsefront.pruning.block_by_block import inside
from sparsefront.pruning.layers import plan_pruning, require_matches, require_no_groups
from sparsefront.pruning.prune import check_pruning
from sparsefront.pruning.prune_blocks import removable_blocks
from sparsefront.pruning.structure import remove_units
from sparsefront.pruning.structured import Structured
from sparsefront.results.record import OF_DATASET, Result
from sparsefront.schedule.one_shot import OneShot
from sparsefront.search.space import require_choosable
from sparsefront.settings_class import without_later

log = logging.getLogger(__name__)
BASES = {f.name: f.type for f in fields(Experiment) if f.name in GROUPS}


def validate(config: DictConfig, *, trust: Sequence[str] | None = None) -> Experiment:
    """Build the settings of all groups and check that they can be combined.

    Args:
        config: the composed configuration of one run.
        trust: for a configuration from a stored run, the packages besides sparsefront whose classes it may name; None: the
            user's own, which may name any.
    Raises:
        InvalidSetting: the first invalid setting: its key, its value, what is allowed.
    """
    check_root(config)
    choices = _choices()
    parts = {group: _build(group, config, choices, trust) for group in ("model", "dataset")}
    # first, because no recipe is right for an unsupported pair
    _check_data_and_model(parts["dataset"], parts["model"], choices)
    choices["recipe"] = _recipe_taken(choices)
    parts |= {group: _build(group, config, choices, trust) for group in GROUPS if group not in parts}
    settings, sparsity = {group: plain(config[group]) for group in GROUPS}, float(config.sparsity)
    settings |= {group: without_later(settings[group]) for group in ("structured", "pattern", "recovery")}
    structured = parts["structured"]
    if structured.pattern is not None and not parts["pattern"].prunes:  # the same as that pattern alone
        alone = {"structured": Structured(), "pattern": structured.pattern}
        if structured.recovery_share > 0:
            allowed = "is for a network that pattern prunes next, and pattern=dense prunes nothing"
            raise InvalidSetting("structured.recovery_share", structured.recovery_share, allowed)
        if structured.pattern.takes_blocks:
            alone |= {"allocation": PerLayer(), "schedule": OneShot()}  # as within a composition
            choices |= {group: alone[group].name for group in ("allocation", "schedule")}
        parts, sparsity = parts | alone, structured.sparsity
        settings |= {group: to_record(part) for group, part in alone.items()}
    parts["allocation"].check_pattern(parts["pattern"])
    experiment = Experiment(
        choices=choices,
        settings=settings,
        sparsity=sparsity if parts["pattern"].prunes else 0.0,
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
    for group in ("trainer", "logger", "report"):
        _call(group, getattr(experiment, group).check)
    _check_combinations(experiment)
    if trust is None:  # records of earlier versions hold what was accepted then
        pattern, kernel = experiment.pattern, experiment.kernel
        if kernel.mode == "sparse" and not (experiment.sweep or pattern.prunes or experiment.precision.is_low):
            allowed = f"swaps kernels for pruned layers in, and pattern={pattern.name} prunes none: kernel=auto or none"
            raise InvalidSetting("kernel", experiment.choices["kernel"], allowed)
        require_choosable(experiment.optimize, find_optimizing_sweeper() or "a sweeper")
    _check_timed_inputs(experiment)
    if experiment.inference.unpadded:
        _check_unpadded(experiment)
    if experiment.measure.mode == "decode":
        _check_decode(experiment)
    _check_precision(experiment)
    _check_structured(experiment)
    _check_recovery(experiment)
    experiment = _with_possible_control(_with_labels(experiment))
    _check_pattern(experiment)
    require_optimized_values(experiment)
    # hub branches as commits, so that what is loaded, recorded and part of keys is the same
    model = _call("model", experiment.model.at_commit)
    return replace(
        experiment, model=model, dataset=_call("dataset", experiment.dataset.at_commit, experiment.cache_dir / "data")
    )


def _choices() -> dict[str, str]:
    return {group: name for group, name in HydraConfig.get().runtime.choices.items() if group in GROUPS}


def _option_folders() -> list[Path]:
    return list_config_folders(HydraConfig.get().runtime.config_sources)


def _recipe_taken(choices: dict[str, str]) -> str:
    """The recipe of the model and data set pair, or the default one."""
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
    with name_as_typed(config, choices, _option_folders()):
        return build_settings(group, config[group], choices.get(group), base=BASES[group], trust=trust)


def _call(group: str, check: Any, *arguments: Any) -> Any:
    """Run a part's own check, prefixing its group to error keys, except for sparsity, which is a root key."""
    try:
        return check(*arguments)
    except InvalidSetting as error:
        if error.key == "sparsity":
            raise
        raise error.within(group) from error


def _check_data_and_model(dataset: Any, model: Any, choices: dict[str, str]) -> None:
    _call("dataset", lambda: dataset.split_version)
    _call("dataset", dataset.check)
    kind = _call("dataset", lambda: dataset.info).kind
    if kind not in model.kinds:
        raise InvalidSetting(
            "dataset", choices["dataset"], f"asks for {kind}; model {choices['model']} serves {', '.join(model.kinds)}"
        )
    _call("model", model.check)


def _check_combinations(experiment: Experiment) -> None:
    """Check settings of several groups that contradict each other, without building anything."""
    choices, recovery, kernel, precision = (
        experiment.choices,
        experiment.recovery,
        experiment.kernel,
        experiment.precision,
    )
    measure, dataset, measuring = (
        experiment.measure,
        experiment.dataset,
        isinstance(experiment.allocation, MeasuringAllocation),
    )
    if measure.lengths != "fixed" and not (measure.latency and experiment.continues_to("measure")):
        why = (
            f"stages ends with {experiment.stages[-1]}, before measure"
            if measure.latency
            else "measure.latency=false times nothing"
        )
        log.info("measure.lengths=dataset: skipped, %s", why)  # the record says so too
    if experiment.swaps and not measure.latency:
        raise InvalidSetting(
            "measure.latency", False, "kernels are chosen by timing them: add kernel=none, or leave it true"
        )
    if experiment.leaves_dense:
        left = "recovery.dense_after leaves a dense network"
        if not kernel.dense_allowed and not kernel.swaps_nothing:
            raise InvalidSetting("kernel", choices["kernel"], f"swaps kernels in, and {left}: kernel=auto or none")
        if precision.is_low:
            raise InvalidSetting("precision", precision.mode, f"is that of kernels, and {left}: precision=none")
        if measuring:
            raise InvalidSetting("allocation", choices["allocation"], f"goes by times of kernels, and {left}")
    if measuring and kernel.swaps_nothing and experiment.pattern.prunes:
        allowed = f"swaps no kernel in: nothing gets faster, so that allocation={choices['allocation']} finds nothing"
        raise InvalidSetting("kernel", choices["kernel"], allowed)
    if experiment.recipe.epochs == 0 and experiment.model.checkpoint is None:
        allowed = (
            f"takes a finished checkpoint as the dense network, and model {choices['model']} starts from random "
            "weights: name a checkpoint (model.path, or another model), or train at least 1 epoch"
        )
        raise InvalidSetting("recipe.epochs", 0, allowed)
    # Logits are stored by row: a row's inputs must be the same in every batch, and its prediction of one size.
    is_fixed = isinstance(dataset, TextDataset) and dataset.info.kind == "sequence_classification"
    if recovery.store_teacher and not is_fixed:
        allowed = f"needs texts with one label each, whose inputs never change; dataset {choices['dataset']} has others"
        raise InvalidSetting("recovery.store_teacher", True, allowed)


def _with_possible_control(experiment: Experiment) -> Experiment:
    """Drop the control if no training follows pruning, so that sweeps over recoveries or with pattern=dense work. Without a
    teacher, dense_distilled becomes dense_continued.
    """
    if experiment.control is None:
        return experiment
    recovery = experiment.continued_recovery
    if recovery is not None:
        if experiment.control != "dense_distilled" or recovery.has_teacher:
            return experiment
        log.info("control=dense_distilled: recovery=%s has no teacher, so that this is dense_continued", recovery.name)
        return replace(experiment, control="dense_continued")
    why = f"recovery={experiment.recovery.name}" if experiment.pattern.prunes else f"pattern={experiment.pattern.name}"
    log.info("control=%s: skipped, %s trains nothing that the dense network could match", experiment.control, why)
    return replace(experiment, control=None)


def _with_labels(experiment: Experiment) -> Experiment:
    """Leave out rows without a label if nothing is recovered, so that sweeps with pattern=dense work."""
    recovery = experiment.recovery
    if not experiment.unlabeled:
        return experiment
    if not experiment.pattern.prunes:
        log.info("dataset.unlabeled=true: skipped, pattern=%s recovers nothing", experiment.pattern.name)
        return replace(experiment, dataset=experiment.dataset.drop_unlabeled())
    if not recovery.has_teacher:
        allowed = (
            f"adds rows without a label, and recovery={recovery.name} has no teacher: distill, square_head or cast"
        )
        raise InvalidSetting("dataset.unlabeled", True, allowed)
    if experiment.control == "dense_continued":
        allowed = "learns from labels, and dataset.unlabeled=true adds rows without: dense_distilled"
        raise InvalidSetting("control", experiment.control, allowed)
    return experiment


def _check_unpadded(experiment: Experiment) -> None:
    """Check that the network is an encoder that can run without padding, and that all that is timed does."""
    info, measure, choices = experiment.dataset.info, experiment.measure, experiment.choices
    if info.sequence_length is None:
        raise InvalidSetting(KEY, True, f"is for text; {choices['dataset']} holds images, which have no padding")
    if measure.mode == "serve":
        raise InvalidSetting(KEY, True, "is not of measure.mode=serve, which pads its batches")
    if isinstance(experiment.allocation, MeasuringAllocation):
        raise InvalidSetting("allocation", choices["allocation"], f"times padded networks: not with {KEY}=true")
    unpad(_call("model", experiment.model.skeleton, info))


def _check_decode(experiment: Experiment) -> None:
    """Decoding needs a language model in 16 bits, an allocation that does not measure, and a cache that is large enough."""
    measure, info, choices = experiment.measure, experiment.dataset.info, experiment.choices
    if info.kind != "causal_lm":
        allowed = f"generates text: dataset {choices['dataset']} asks for {info.kind}, not causal_lm"
        raise InvalidSetting("measure.mode", measure.mode, allowed)
    if experiment.precision.is_low:
        raise InvalidSetting("precision", experiment.precision.mode, "is none with measure.mode=decode")
    if isinstance(experiment.allocation, MeasuringAllocation):
        raise InvalidSetting("allocation", choices["allocation"], "times whole forwards, not measure.mode=decode")
    longest = experiment.model.longest_sequence(info)
    for prompt in (length or info.sequence_length for length in measure.sequence_lengths):
        assert prompt is not None  # text always has one
        require_cache(prompt, length := measure.cache_length_for(prompt), key="measure.cache_length")
        if longest is not None and length > longest:
            allowed = f"holds {length} tokens, and model {choices['model']} takes at most {longest}: a shorter "
            key, value = ("sequence_length", prompt) if measure.cache_length is None else ("cache_length", length)
            raise InvalidSetting(f"measure.{key}", value, f"{allowed}{key}")
    if measure.dense_low is None and measure.torch_device.type == "cuda" and (why := int8_unavailable_reason()):
        log.warning("measure.dense_low=[%s] is left out: %s", INT8_WEIGHT_ONLY, why)


def _check_precision(experiment: Experiment) -> None:
    """Check that the device supports the precision, and that a pruned network has kernels for it."""
    precision, measure, kernel = experiment.precision, experiment.measure, experiment.kernel
    device, dtype = measure.torch_device, measure.torch_dtype
    precision.check(device, dtype)
    for low in measure.dense_low or ():
        why = int8_unavailable_reason() if low == INT8_WEIGHT_ONLY else explain_refusal(low, device, dtype)
        if why is not None:
            raise InvalidSetting("measure.dense_low", measure.dense_low, why)
    if kernel.name is not None and (own := labeled(kernel.name)[0].precision) not in ("none", precision.of_dense):
        raise InvalidSetting("kernel.name", kernel.name, f"multiplies in {own}: add precision={own}")
    if precision.is_low and experiment.pattern.prunes and not experiment.swaps and "measure" in experiment.stages:
        key, value = ("kernel", experiment.choices["kernel"]) if kernel.swaps_nothing else ("stages", "without swap")
        allowed = f"swaps nothing in, and precision={precision.mode} is that of kernels"
        raise InvalidSetting(key, value, f"{allowed}: kernel=auto; pattern=dense is the dense network in it")


def _check_timed_inputs(experiment: Experiment) -> None:
    """Check that the network supports every timed length or image size. For images one length is ignored."""
    info, measure, data = experiment.dataset.info, experiment.measure, experiment.choices["dataset"]
    key, lengths = "measure.sequence_length", measure.sequence_lengths
    if measure.image_size is not None:
        _check_timed_image_size(experiment, measure.image_size)
    if measure.parts and info.kind != "translation":
        raise InvalidSetting("measure.parts", measure.parts, f"is for translation; {data} asks for {info.kind}: use []")
    if info.sequence_length is None:
        if len(lengths) > 1:
            raise InvalidSetting(key, measure.sequence_length, "images have no length to time: leave it null")
        if measure.lengths == "dataset":
            raise InvalidSetting("measure.lengths", measure.lengths, f"is for text; {data} holds images: use fixed")
        return
    longest = _call("model", experiment.model.longest_sequence, info)
    if longest is not None and any(length is not None and length > longest for length in lengths):
        model = experiment.choices["model"]
        raise InvalidSetting(key, measure.sequence_length, f"model {model} takes at most {longest} tokens")


def _check_timed_image_size(experiment: Experiment, size: int) -> None:
    """Check on the meta device that the network supports images of this size."""
    info, key, model = experiment.dataset.info, "measure.image_size", experiment.choices["model"]
    if info.image_size is None:
        raise InvalidSetting(key, size, f"is for images; {experiment.choices['dataset']} holds text: leave it null")
    net = _call("model", experiment.model.skeleton, info)
    try:
        with in_eval_mode(net), torch.no_grad():
            net(x=torch.empty(2, info.channels, size, size, device="meta"))
    except NotImplementedError:  # an operator without meta support; the run itself will fail if necessary
        return
    except (RuntimeError, ValueError, AssertionError) as error:
        why = f"model {model} for images of {info.image_size} pixels cannot take these ({first_line(error)})"
        raise InvalidSetting(key, size, f"{why}; leave it null or set dataset.image_size") from error


def _check_quantizable(experiment: Experiment, net: nn.Module, layers: Sequence[str]) -> None:
    """Check that at least one layer supports the low precision. `net`: may be on the meta device."""
    shapes = [layer.weight.shape for name in layers if isinstance(layer := net.get_submodule(name), nn.Linear)]
    if not any(n % MULTIPLE == k % MULTIPLE == 0 for n, k in shapes):
        allowed = f"runs no layer of model {experiment.choices['model']}: Linears of multiples of {MULTIPLE} it would"
        raise InvalidSetting("precision", experiment.precision.mode, f"{allowed}; convolutions stay in 16 bits")


def _check_structured(experiment: Experiment) -> None:
    """Check that the network can be made smaller first, and that all that follows takes a smaller network."""
    shrinking, choices = experiment.shrinking, experiment.choices
    if shrinking is None:
        return
    name = f"structured={experiment.structured.name}"
    if experiment.pattern.takes_blocks or experiment.pattern.tied:
        allowed = f"makes a smaller dense network, and so does {name}: choose one of them, or a pattern within layers"
        raise InvalidSetting("pattern", choices["pattern"], allowed)
    if isinstance(experiment.allocation, MeasuringAllocation):
        allowed = f"measures the dense network, of which {name} leaves a part: choose another allocation"
        raise InvalidSetting("allocation", choices["allocation"], allowed)
    if not experiment.recovery.trains_as_found:
        met = options_where("sparsefront.recovery", lambda other: other.trains_as_found)
        allowed = f"starts from the dense weights, of which {name} leaves a part: it goes with {', '.join(met)}"
        raise InvalidSetting("recovery", choices["recovery"], allowed)
    if shrinking.pattern.over_norms and getattr(experiment.recovery, "compares_hidden_states", False):
        allowed = (
            f"leaves hidden states of another size than the teacher's, which {choices['recovery']} compares: take width"
        )
        raise InvalidSetting("structured.units", experiment.structured.units, allowed)  # type: ignore[attr-defined]  # of Narrower
    with _of_structured():
        shrinking.importance.check(shrinking.pruning)
        _check_pattern(shrinking)
    share, training = experiment.structured.recovery_share, experiment.continued_recovery
    if share == 0:
        return
    if training is None or training.leaves_dense or training.plan(experiment.recipe, 1).steps is None:
        allowed = (
            "divides recipe.recovery_steps, the steps of a recovery that trains under masks from its start to its end"
        )
        raise InvalidSetting("structured.recovery_share", share, allowed)
    first = experiment.smaller_recovery
    if first is None or first.recipe.recovery_steps == experiment.recipe.recovery_steps:
        steps = counted(experiment.recipe.recovery_steps or 0, "step")
        raise InvalidSetting("structured.recovery_share", share, f"leaves one of the two recoveries none of {steps}")
    with _of_structured():
        _check_recovery(first)


@contextmanager
def _of_structured() -> Iterator[None]:
    """Name `structured` in errors about the pattern that it stands for."""
    try:
        yield
    except InvalidSetting as error:
        key = {"sparsity": "structured.sparsity", "pattern": "structured"}.get(error.key, error.key)
        if key.startswith("pattern."):
            key = key.replace("pattern", "structured", 1)
        raise InvalidSetting(key, error.value, error.allowed) from error


def _smaller(net: nn.Module, shrinking: Experiment, prunable: Sequence[str]) -> nn.Module:
    """A skeleton without as many blocks or units as the experiment will remove, in place; which ones changes no shape."""
    pattern, ignored = shrinking.pattern, shrinking.recipe.find_ignored(prunable)
    plan = plan_pruning(net, prunable, pattern=pattern, sparsity=shrinking.sparsity, ignored=ignored)
    if isinstance(pattern, Depth):
        stacks = removable_blocks(net, plan.layers, ignored, pattern, shrinking.sparsity)
        removed = [block for stack in stacks for block in stack.select(pattern)]
        remove_blocks(net, names_left(net, [block for stack in stacks for block in stack.blocks], removed))
        return net
    hidden_layers = getattr(shrinking.recovery, "hidden_layers", None) or ()
    for tie, removed_count in zip(
        plan.ties, units_to_prune(plan.ties, plan.pruned_shapes, shrinking.sparsity, pattern.multiple_of), strict=True
    ):
        if removed_count:
            for name in hidden_layers:
                if inside(name, list(tie.outputs)) and not inside(name, list(tie.inputs)):
                    narrower = next(iter(tie.outputs))
                    allowed = f"has fewer outputs than in the teacher, because {narrower} becomes narrower: name blocks"
                    raise InvalidSetting("recovery.hidden_layers", name, allowed)
            remove_units(net, tie, torch.arange(tie.count) >= removed_count)
    return net


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
    """Check that the root's granularity reaches the pattern, unless `pattern.granularity` overrides it."""
    granularity, pattern = experiment.granularity, experiment.pattern
    if granularity is None:
        return
    if not pattern.uses_granularity:
        log.info("granularity=%s: pattern %s has no group size and ignores it", granularity, pattern.name)
        return
    own = pattern.granularity  # type: ignore[attr-defined]
    typed = any(text.lstrip("+").startswith("pattern.granularity=") for text in HydraConfig.get().overrides.task)
    if typed or str(own) == str(granularity):
        return
    name = Path("pattern") / f"{experiment.choices['pattern']}.yaml"
    file = next((folder / name for folder in _option_folders() if (folder / name).is_file()), name)
    line = f"granularity: ${{default:${{granularity}},{own}}}"
    how = "change its line to" if "granularity" in experiment.settings["pattern"] else "add"
    raise InvalidSetting("granularity", granularity, f"{file} does not read it: {how} `{line}`")


def _check_pattern(experiment: Experiment) -> None:
    """Check that the pattern fits at least one layer, and that a forced kernel supports it."""
    pattern = experiment.pattern
    _check_granularity(experiment)
    if pattern.prunes:
        _call("pattern", pattern.check_sparsity, experiment.sparsity)
        _call("allocation", experiment.allocation.check_sparsity, experiment.sparsity)
    net = _call("model", experiment.model.skeleton, experiment.dataset.info)
    prunable = _call("model", prunable_layers, experiment.model, net)
    _call("recipe", require_matches, experiment.recipe.ignore if pattern.prunes else (), net, prunable)
    if experiment.shrinking is not None:
        net = _smaller(net, experiment.shrinking, prunable)
        prunable = _call("model", prunable_layers, experiment.model, net)
    if experiment.precision.is_low:
        _check_quantizable(experiment, net, prunable)
    if not pattern.prunes:
        return
    ignored = experiment.recipe.find_ignored(prunable)
    try:
        plan = check_pruning(net, prunable, experiment.pruning, ignored, experiment.recipe.ignore)
    except InvalidSetting as error:
        raise error.within("recipe") if error.key == "ignore" else error from None
    if experiment.recovery.reads_inputs:
        require_no_groups(net, plan.layers, experiment.recovery.name)
    _call("report", experiment.report.check_layers, plan.pruned_shapes)
    if isinstance(pattern, Depth):
        return
    with keys_of("kernel"):
        experiment.kernel.check_against(
            pattern=pattern,
            sparsity=experiment.sparsity,
            shapes=plan.pruned_shapes,
            device=experiment.measure.torch_device,
            dtype=experiment.measure.torch_dtype,
            precision=experiment.precision.of_dense or "none",
        )


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


def find_optimizing_sweeper() -> str | None:
    """The class of a sweeper that uses a run's return value; None in a single run and for Hydra's own sweeper."""
    hydra = HydraConfig.get()
    name = str(hydra.sweeper.get("_target_")).rpartition(".")[2]
    return None if hydra.mode is not RunMode.MULTIRUN or name == "BasicSweeper" else name


def require_optimized_values(experiment: Experiment) -> None:
    """Check that every value of `optimize` will be in this run's record.

    Raises:
        InvalidSetting: names the value and why it will be missing, or that nothing is held out.
    """
    sweeper = find_optimizing_sweeper()
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
    sweeper = find_optimizing_sweeper()
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
