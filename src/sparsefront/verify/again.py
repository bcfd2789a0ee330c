"""Compose the experiment of a stored result, and its result again from the networks that are here."""

import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from sparsefront.allocation.base import MeasuringAllocation
from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting, Obstacle, printable
from sparsefront.export.checkpoint import Export
from sparsefront.networks import layer_weight, load_state
from sparsefront.patterns.base import label
from sparsefront.patterns.blocks import windows_text
from sparsefront.progress import counted
from sparsefront.provenance import Provenance, provenance
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.field_types import differences
from sparsefront.results.record import Cost, Identity, Result, result_fields
from sparsefront.runs import composable_overrides
from sparsefront.stages import control
from sparsefront.stages.bench import evaluate_splits
from sparsefront.stages.keys import dense_recipe, stage_keys
from sparsefront.stages.measure import measure_networks
from sparsefront.stages.network import build_net, load_net, weights_digest
from sparsefront.stages.report import choice_of, compose_result, planned_budgets
from sparsefront.tasks.outcomes import Outcomes
from sparsefront.training.resume import WEIGHTS

Composed = tuple[Experiment, dict[str, Any]]
ON_CPU = {"measure.device": "cpu", "measure.dtype": "fp32", "trainer": "cpu"}


def tell(doing: str) -> None:
    """Report progress on stderr; stdout has only the answers."""
    print(printable(doing), file=sys.stderr, flush=True)


@contextmanager
def experiment_of(
    result: Result,
    row: Path,
    overrides: Sequence[str],
    composed: Callable[[Sequence[str]], AbstractContextManager[Composed]],
) -> Iterator[Composed]:
    """Context with the experiment composed from the overrides recorded next to the result, followed by these, and with its
    configuration. If the result is of a GPU and there is none here, everything runs on the CPU in fp32.

    Raises:
        InvalidSetting: they cannot be composed, or give another experiment than that of the result.
    """
    with composed(overrides_of(result, row, overrides)) as (experiment, configuration):
        _require_same(experiment, result)
        yield experiment, configuration


def overrides_of(result: Result, row: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides that compose the experiment of a stored result. Arguments and errors as in `experiment_of`."""
    without_gpu = result.speed.latency_device == "cuda" and not torch.cuda.is_available()
    on_cpu = [f"{key}={value}" for key, value in ON_CPU.items()] if without_gpu else []
    return [*composable_overrides(row.parent, [*on_cpu, *overrides]), "logger=none"]


def _require_same(experiment: Experiment, result: Result) -> None:
    """Check that the choices equal those in the record, but for what its weights do not depend on, or another run may have set
    otherwise: trainer, name of an equal recipe, location of the data, the kernel if none ran, a dense network's recovery.
    """
    composed = asdict(choice_of(experiment, experiment.model.network_facts(build_net(experiment))))
    stated = asdict(result.choice) | {"sparsity": result.sparsity.sparsity_target, "seed": result.identity.seed}
    composed |= {"sparsity": experiment.sparsity, "seed": experiment.seed}
    stated["recovery_seed"] = result.identity.recovery_seed
    composed["recovery_seed"] = experiment.recovery_seed if experiment.pattern.prunes else None
    if result.quality.sparse is None:
        composed["kernel_mode"] = stated["kernel_mode"]
    if not experiment.pattern.prunes:
        stated["recipe_parameters"] = dense_recipe(stated["recipe_parameters"])
    for path, there, here in differences((), stated, composed):
        free = path[0] in ("trainer_parameters", "recipe") or path[-1] in experiment.dataset.elsewhere
        old = result.identity.migrated_from is not None
        if free or old and there is None and _is_default(experiment, path, here):
            continue
        name = "dataset.split_by" if path[0] == "dataset_split" else ".".join(map(str, path))
        raise InvalidSetting(name, here, f"is {there} in the record: add the run's own overrides to the command")


def _is_default(experiment: Experiment, path: tuple, here: Any) -> bool:
    """Whether a part's setting that an older record lacks has its default value."""
    part = getattr(experiment, str(path[0]).removesuffix("_parameters"), None)
    for item in fields(part) if is_dataclass(part) else ():
        if item.name == path[-1]:
            return here == (item.default if item.default_factory is MISSING else item.default_factory())
    return False


@dataclass(frozen=True)
class Again:
    """A result made again: `unknown` are fields that the run fills with values that are not known here."""

    now: Result
    unknown: set[str]
    outcomes: dict[str, Outcomes]


def planned(experiment: Experiment, result: Result) -> dict[str, Any]:
    """The initial weights, and steps, epochs and samples of both trainings as planned for this data; None: not known.

    Raises:
        Obstacle: the data is not that of the record: metrics on it would mean nothing.
    """
    tell("reading the data ...")
    stated, here = result.identity.dataset_digest, digest(experiment.dataset.content())
    if stated not in (None, here):
        how = f"is not what the result was measured on: dataset_digest is {stated} in the record, {here} here"
        raise Obstacle("data", None, f"{how}; name the run's own data (dataset.path=...), in the same files")
    return planned_budgets(experiment) | {"initial_weights": experiment.model.fingerprint()}


def measure_again(experiment: Experiment, result: Result, export: Export | None, spec: MaskSpec) -> Again:
    """Evaluate the networks that are here as the run did, and time them if this is its device.

    Args:
        export: checked against the record; None for pattern=dense.
        spec: of its masks.
    Raises:
        Obstacle: the data differs from that of the result.
    """
    if result.choice.kernel_mode == "none":  # `stages` of a record are not followed
        experiment = replace(experiment, stages=tuple(stage for stage in experiment.stages if stage != "swap"))
    budgets, keys = planned(experiment, result), stage_keys(experiment)
    del budgets["initial_weights"]  # as `compose_result` has them
    tell("looking for the dense weights ...")
    dense = _stored_net(experiment, "dense", keys.dense, result.identity.dense_weights_sha256)
    net, masked = dense or build_net(experiment), build_net(experiment)
    if export is not None:
        export.spec.shrink(masked)
        load_state(masked, export.state_dict())
    here = provenance(experiment.measure.torch_device)
    same_device = device_of(here) == device_of(result.identity)
    if not same_device:
        measure = experiment.measure
        first = {"batch_size": measure.batch_sizes[0], "sequence_length": measure.sequence_lengths[0]}
        experiment = replace(experiment, measure=replace(measure, latency=False, lengths="fixed", parts=[], **first))
    samples = counted(result.quality.evaluated_samples or 0, "sample")
    tell(f"evaluating {samples}{' and timing dense and sparse' if same_device else ''} ...")
    with TemporaryDirectory() as folder:
        content, _, qualities = measure_networks(
            experiment,
            net,
            None if export is None else partial(copy.deepcopy, masked),
            export,
            lambda bench, make_net, low: evaluate_splits(bench, make_net(), "dense"),
            Path(folder),
        )
    searched = {"layers": {name: {"pattern": label(own)} for name, own in (spec.patterns or {}).items()}}
    pruned = set(result.sparsity.sparsity_per_layer or {}) & {name for name, _ in masked.named_modules()}
    shapes = {name: tuple(layer_weight(masked.get_submodule(name)).shape) for name in sorted(pruned)}
    stated = MaskSpec() if experiment.leaves_dense else spec  # lifted masks keep everything
    own = {name: (shape, stated.sparsity_of(name, experiment.sparsity)) for name, shape in shapes.items()}
    now = compose_result(
        experiment,
        json.loads(json.dumps(content)),  # as stored
        run_id=digest(keys.measure),
        checkpoint=result.identity.checkpoint,
        n_of_m=windows_text(experiment.pattern, own) if own else None,
        searched=searched,
        cost=Cost(**budgets),
    )
    outcomes = {side: found.test.outcomes for side, found in qualities.items()}
    unknown = _never_known(experiment) | {name for name, value in budgets.items() if value is None}
    unknown -= {"recovery_samples_per_s"} if budgets.get("recovery_samples") == 0 else set()
    sometimes = ("recovery_gpu_busy_share", "migrated_from")
    unknown |= {name for name in sometimes if result.value_of(name) is not None}
    seals = ("record_sha256", "samples_sha256", "outcomes_sha256")  # checked before
    changes: dict[str, Any] = {name: result.value_of(name) or "" for name in seals}
    if experiment.control is not None:
        net = _stored_net(
            experiment, experiment.control, keys.control, result.value_of(f"{experiment.control}_weights_sha256")
        )
        if net is None:
            unknown |= {name for name in _names() if experiment.control in name}
            unknown -= set() if experiment.dataset.valid_fraction else {name for name in unknown if "val_" in name}
        else:
            found, more = control.evaluate(experiment, net)
            changes, outcomes = changes | found, outcomes | more
    if dense is None:
        outcomes = {side: one for side, one in outcomes.items() if not side.startswith("dense")}
        sides = ("dense", "dense_low")
        known = {name for name in _names() if name.removeprefix("val_").removesuffix("_standard_error") in sides}
        unknown |= {name for name in known if now.value_of(name) is not None} | {"dense_weights_sha256"}
        of_dense = {side: result.quality.extra_metrics.get(side) for side in sides if side in now.quality.extra_metrics}
        changes["extra_metrics"] = now.quality.extra_metrics | of_dense
    if dense is None or export is not None and result.identity.checkpoint != f"export/{digest(keys.export)}":
        unknown |= {"seed", "recovery_seed"} if experiment.pattern.prunes else {"seed"}
    if not same_device:
        unknown |= {item.name for item in result_fields() if item.group in ("speed", "size", "kernels")}
        unknown |= asdict(here).keys() | {"gpu_clock_mhz"}
    return Again(now.with_values(changes), unknown, outcomes)


def _names() -> list[str]:
    return [item.name for item in result_fields()]


def _never_known(experiment: Experiment) -> set[str]:
    """Fields of what happened once: times, and what a latency search predicted."""
    names = {"time", "train_dense_seconds", "measure_seconds", "dense_reused"}
    names |= {"search_seconds", "timing_seconds", "evaluation_seconds"}
    names |= {"prune_seconds", "recover_seconds", "recovery_samples_per_s"} if experiment.pattern.prunes else set()
    names |= set() if experiment.control is None else {f"{experiment.control}_seconds"}
    return names | ({"latency_predicted_ms"} if isinstance(experiment.allocation, MeasuringAllocation) else set())


def _stored_net(experiment: Experiment, kind: str, key: dict[str, Any] | None, sha256: str | None) -> nn.Module | None:
    """The network of a finished stage; None if it is not stored here, or differs from the record's."""
    with ArtifactStore(experiment.cache_dir, runnable=(), reuse=True) as store:
        stored = None if key is None else store.find(kind, key)
        net = None if stored is None else load_net(experiment, Path(stored.path) / WEIGHTS)
    return None if net is None or weights_digest(net) != sha256 else net


def device_of(facts: Identity | Provenance) -> str:
    """The measured device: GPU, or processor with threads (missing in older records)."""
    threads = "" if facts.threads is None else f" with {counted(facts.threads, 'thread')}"
    return f"{facts.gpu or facts.processor}{threads}"
