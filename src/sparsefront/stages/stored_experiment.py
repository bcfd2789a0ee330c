"""The experiment of a stored result, composed again where it is verified."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment
from sparsefront.recorded import composable_overrides
from sparsefront.report.result import Result
from sparsefront.report.schema_version import SCHEMA_VERSION
from sparsefront.stages.keys import dense_recipe
from sparsefront.stages.network import build_net
from sparsefront.stages.report import choice_of

Composed = tuple[Experiment, dict[str, Any]]
ON_CPU = {"measure.device": "cpu", "measure.dtype": "fp32", "trainer": "cpu"}


@contextmanager
def experiment_of(
    result: Result,
    row: Path,
    overrides: Sequence[str],
    composed: Callable[[Sequence[str]], AbstractContextManager[Composed]],
) -> Iterator[Composed]:
    """The experiment by the overrides that the run recorded beside its result, and by these, which come after them.

    Where the result is of a GPU and here is none, all runs on the CPU in fp32.

    Args:
        composed: overrides -> their experiment and its configuration as plain containers, interpolations as written, while
            Hydra's own settings are those of its run.
    Raises:
        InvalidSetting: they cannot be composed, or give another experiment than the result is of.
    """
    given = [*_without_gpu(result), *overrides]
    with composed([*composable_overrides(row.parent, given), "logger=none"]) as (experiment, configuration):
        _require_same(experiment, result)
        yield experiment, configuration


def _without_gpu(result: Result) -> list[str]:
    if result.speed.latency_device != "cuda" or torch.cuda.is_available():
        return []
    return [f"{key}={value}" for key, value in ON_CPU.items()]


def _require_same(experiment: Experiment, result: Result) -> None:
    """What was chosen, as the record has it; how it was trained matters no more, since its weights are there.

    Nor does what the result never depended on, which it may hold of another run that found it, or of an earlier version:
    the kernel where none ran, of a dense network's recipe what comes after pruning, and where the data lies.
    """
    network = experiment.model.network_facts(build_net(experiment))
    composed, stored = asdict(choice_of(experiment, network)), asdict(result.choice)
    if result.quality.sparse is None:
        composed["kernel_mode"] = stored["kernel_mode"]
    if not experiment.pattern.prunes:
        stored["recipe_parameters"] = dense_recipe(stored["recipe_parameters"])
    for choice in (composed, stored):
        choice["dataset_parameters"] = {
            key: value for key, value in choice["dataset_parameters"].items() if key not in experiment.dataset.elsewhere
        }
    composed |= {"sparsity": experiment.sparsity, "seed": experiment.seed}
    stored |= {"sparsity": result.sparsity.sparsity_target, "seed": result.identity.seed}
    if result.identity.recovery_seed is not None or result.identity.schema_version == SCHEMA_VERSION:
        composed["recovery_seed"] = experiment.recovery_seed if experiment.pattern.prunes else None
        stored["recovery_seed"] = result.identity.recovery_seed
    for name, value in stored.items():
        # a recipe is what its parameters say: equal ones under two names share their result
        if name not in ("trainer_parameters", "recipe") and composed[name] != value:
            key, here, there = _first_difference(name, composed[name], value)
            raise InvalidSetting(key, here, f"is {there} in the record: add the run's own overrides to the command")


def _first_difference(name: str, here: Any, stored: Any) -> tuple[str, Any, Any]:
    if isinstance(here, dict) and isinstance(stored, dict):
        for key in {**stored, **here}:
            if here.get(key) != stored.get(key):
                return f"{name}.{key}", here.get(key), stored.get(key)
    return name, here, stored
