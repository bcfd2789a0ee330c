"""Every check that needs more than one key, before anything is downloaded or trained."""

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from sparsefront.config import GROUPS, STAGES
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment
from sparsefront.export.storage_check import require_storable
from sparsefront.group_options import options_of, searched_folders
from sparsefront.models.prunable import prunable_layers
from sparsefront.pruning.layers import (
    narrower_than_tiles,
    nothing_fits,
    plan_pruning,
    require_matches,
    require_whole_groups,
)
from sparsefront.pruning.rounding import require_effect
from sparsefront.root_checks import check_root
from sparsefront.search.objective import field_of
from sparsefront.setting_types import plain, told_where_typed
from sparsefront.settings import build_settings
from sparsefront.stages.budget_checks import check_checkpoint, with_possible_control
from sparsefront.stages.latency_search import check_search
from sparsefront.stages.optimized_values import require_optimized_values
from sparsefront.stages.untimed import check_untimed

log = logging.getLogger(__name__)
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
    check_untimed(experiment)
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
        raise InvalidSetting("recipe", chosen, f"there are {', '.join(recipes)}")
    log.info("recipe: there is none named %s, so that the values of recipe=default hold", pair)
    return "default"


def _sweep_name() -> str | None:
    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir).name if hydra.mode is RunMode.MULTIRUN else None


def _build(group: str, config: DictConfig, choices: dict[str, str], trust: Sequence[str] | None) -> Any:
    with told_where_typed(config, choices, _option_folders()):
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
    if info.sequence_length is None:
        if len(lengths) > 1:
            raise InvalidSetting(key, measure.sequence_length, "images have no length to time: leave it null")
        return
    longest = _call("model", experiment.model.longest_sequence, info)
    if longest is not None and any(length is not None and length > longest for length in lengths):
        model = experiment.choices["model"]
        raise InvalidSetting(key, measure.sequence_length, f"model {model} takes at most {longest} tokens")


def _check_recovery(experiment: Experiment) -> None:
    schedule, recovery = experiment.schedule, experiment.recovery
    recovery.check_schedule(schedule, experiment.sparsity)
    if experiment.pattern.prunes:
        schedule.check_sparsity(experiment.sparsity)
        schedule.check_rounds(experiment.sparsity)
        schedule.check_pattern(experiment.pattern)
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
    if not pattern.prunes:
        return
    _call("recipe", require_matches, experiment.recipe.ignore, net, prunable)
    ignored = experiment.recipe.ignored(prunable)
    plan = plan_pruning(net, prunable, pattern=pattern, sparsity=experiment.sparsity, ignored=ignored)
    try:
        require_whole_groups(plan, pattern, ignored)
    except InvalidSetting as error:
        raise error if error.key == "granularity" else error.within("pattern") from error
    if not plan.layers:
        raise nothing_fits(plan, pattern, experiment.recipe.ignore)
    if (narrower := narrower_than_tiles(plan, pattern)) is not None:
        log.info("%s", narrower)
    shapes = {name: plan.shapes[name] for name in plan.layers}
    _call("report", experiment.report.check_layers, shapes)
    _call("allocation", experiment.allocation.check_layers, pattern, shapes, experiment.sparsity)
    weight_shapes = {name: tuple(net.get_submodule(name).weight.shape) for name in plan.layers}
    require_effect(pattern, experiment.allocation, weight_shapes, experiment.sparsity)
    require_storable(pattern, shapes.values(), experiment.sparsity)
    check_search(experiment, net, plan.layers)
    try:
        experiment.kernel.check_against(
            pattern=pattern,
            sparsity=experiment.sparsity,
            shapes=shapes,
            device=experiment.measure.torch_device,
            dtype=experiment.measure.torch_dtype,
        )
    except InvalidSetting as error:
        raise error.within("kernel") from error
