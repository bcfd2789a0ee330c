"""Compose the experiment of a stored result, and its result again from the networks that are here."""

import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from sparsefront.allocation.base import MeasuringAllocation
from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting, Obstacle, printable
from sparsefront.export.checkpoint import Export
from sparsefront.networks import load_state
from sparsefront.options import CONF
from sparsefront.patterns.base import label
from sparsefront.patterns.dense import Dense
from sparsefront.progress import counted
from sparsefront.provenance import Provenance, provenance
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.field_types import differences
from sparsefront.results.record import ENERGY, Cost, Identity, Result, result_fields
from sparsefront.runs import composable_overrides, compose_config
from sparsefront.stages import control
from sparsefront.stages.bench import evaluate_splits
from sparsefront.stages.keys import dense_recipe, stage_keys
from sparsefront.stages.measure import measure_networks
from sparsefront.stages.network import build_net, load_net, weights_digest
from sparsefront.stages.report import choice_of, compose_result, plan_budgets, windows_of
from sparsefront.tasks.outcomes import Outcomes
from sparsefront.training.resume import WEIGHTS
from sparsefront.verify.compared import DIFFERS, Comparison, topic_of

ON_CPU = {"measure.device": "cpu", "measure.dtype": "fp32", "trainer": "cpu"}
FIELDS = {item.name: item for item in result_fields()}
OF_DEVICE = {name for name, item in FIELDS.items() if topic_of(item) in ("latency", "memory", "kernels")}
KEYS = {"dataset_split": "dataset.split_by", "sparsity_target": "sparsity"}
# these depend on the device, or only affect rounding
TRAINER_OF_DEVICE = ("device", "precision", "deterministic", "compile", "cuda_graphs", "exchange_gradients")


def tell(doing: str) -> None:
    """Report progress on stderr; stdout has only the answers."""
    print(printable(doing), file=sys.stderr, flush=True)


@contextmanager
def experiment_of(
    result: Result, row: Path, overrides: Sequence[str], trust: Sequence[str], *, training: bool = False
) -> Iterator[tuple[Experiment, dict[str, Any]]]:
    """Context with the experiment composed from the overrides recorded next to the result, followed by these, and with its
    configuration. If the result is of a GPU and there is none here, everything runs on the CPU in fp32; if it is of a CPU, with
    its number of threads, where there are so many.

    Args:
        trust: packages whose classes it may name.
        training: it will train, so that settings of the trainer count.
    Raises:
        InvalidSetting: they cannot be composed, or give another experiment than that of the result.
    """
    before, threads = torch.get_num_threads(), result.identity.threads or 0
    try:
        torch.set_num_threads(threads if 0 < threads <= (os.cpu_count() or 1) else before)
        with _compose(trust, overrides_of(result, row, overrides)) as (experiment, configuration):
            _require_same(experiment, result, training)
            yield experiment, configuration
    finally:
        torch.set_num_threads(before)


@contextmanager
def _compose(trust: Sequence[str], overrides: Sequence[str]) -> Iterator[tuple[Experiment, dict[str, Any]]]:
    with compose_config(overrides, CONF) as (config, _):
        plain: Any = OmegaConf.to_container(config, resolve=False)
        yield validate(config, trust=trust), plain


def overrides_of(result: Result, row: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides that compose the experiment of a stored result. Arguments and errors as in `experiment_of`."""
    without_gpu = result.identity.gpu is not None and not torch.cuda.is_available()
    on_cpu = [f"{key}={value}" for key, value in ON_CPU.items()] if without_gpu else []
    null = result.choice.recovery_parameters.get("epochs", ...) is None
    rewinds = result.choice.recovery in ("lr_rewind", "weight_rewind")
    former = ["recovery.epochs=null"] if null and rewinds else []  # the default once
    return [*former, *composable_overrides(row.parent, [*on_cpu, *overrides]), "logger=none"]


def _require_same(experiment: Experiment, result: Result, training: bool) -> None:
    """Check that the choices equal those in the record, but for what neither weights nor measurements depend on."""
    chosen = asdict(choice_of(experiment, experiment.model.network_facts(build_net(experiment))))
    recovery_seed = experiment.recovery_seed if experiment.pattern.prunes else None
    chosen |= {"sparsity_target": experiment.sparsity, "seed": experiment.seed, "recovery_seed": recovery_seed}
    if not experiment.pattern.prunes:
        result = result.with_values({"recipe_parameters": dense_recipe(result.choice.recipe_parameters)})
    chosen |= {} if result.quality.sparse is not None else {"kernel_mode": result.choice.kernel_mode}
    comparison = Comparison(result, result.with_values(chosen))
    for name in chosen:
        for path, there, here, verdict, _ in comparison.differing(FIELDS[name]):
            if verdict == DIFFERS or name.endswith("seed") and there is not None:
                key = KEYS.get(name, ".".join(map(str, path)))
                raise InvalidSetting(key, here, f"is {there} in the record: add the run's own overrides to the command")
    stored, trainer = result.choice.trainer_parameters, experiment.trainer.cache_key()
    free = TRAINER_OF_DEVICE if stored.get("device") != trainer["device"] else ()
    for (setting, *_), there, here in differences((), stored, trainer) if training else ():
        if setting not in free:
            how = f"is {there} in the record, and another training gives other weights: name it in the command"
            raise InvalidSetting(f"trainer.{setting}", here, how)


def plan_training(experiment: Experiment, result: Result) -> dict[str, Any]:
    """Steps, epochs and samples of both trainings as planned for this data; None: not known.

    Raises:
        Obstacle: the data is not that of the record: metrics on it would mean nothing.
    """
    tell("reading the data ...")
    stated, here = result.identity.dataset_digest, digest(experiment.dataset.content())
    if stated not in (None, here):
        how = f"is not what the result was measured on: dataset_digest is {stated} in the record, {here} here"
        raise Obstacle("data", None, f"{how}; name the run's own data (dataset.path=...), in the same files")
    return plan_budgets(experiment)


def measure_again(
    experiment: Experiment, result: Result, export: Export | None, spec: MaskSpec
) -> tuple[Result, set[str], dict[str, Outcomes]]:
    """Evaluate the networks that are here as the run did, and time them if this is its device.

    Args:
        export: checked against the record; None for pattern=dense.
        spec: of its masks.
    Returns:
        the result now, the fields that the run fills with values that are not known here, and the outcomes of each network.
    Raises:
        Obstacle: the data differs from that of the result.
    """
    if result.choice.kernel_mode == "none":  # `stages` of a record are not followed
        experiment = replace(experiment, stages=tuple(stage for stage in experiment.stages if stage != "swap"))
    budgets, keys = plan_training(experiment, result), stage_keys(experiment)
    tell("looking for the dense weights ...")
    dense = _load_stored(experiment, "dense", keys.dense, result.identity.dense_weights_sha256)
    masked = build_net(experiment)
    if export is not None:
        export.spec.shrink(masked)
        load_state(masked, export.state_dict())
    here = provenance(experiment.measure.torch_device)
    same_device = device_of(here) == device_of(result.identity)
    if not same_device:
        measure = replace(experiment.measure, latency=False, lengths="fixed", parts=[])
        first = {"batch_size": measure.batch_sizes[0], "sequence_length": measure.sequence_lengths[0]}
        experiment = replace(experiment, measure=replace(measure, **first))
    samples = counted(result.quality.evaluated_samples or 0, "sample")
    tell(f"evaluating {samples}{' and timing dense and sparse' if same_device else ''} ...")
    with TemporaryDirectory() as folder:
        content, _, qualities = measure_networks(
            experiment,
            dense or build_net(experiment),
            None if export is None else partial(copy.deepcopy, masked),
            export,
            lambda bench, make_net, low: evaluate_splits(bench, make_net(), "dense"),
            Path(folder),
        )
    shapes = {} if export is None else {name: tuple(mask.shape) for name, mask in export.masks.items()}
    patterns = ((name, spec.pattern_of(name, Dense())) for name in shapes)  # those that a search left dense have none
    now = compose_result(
        experiment,
        json.loads(json.dumps(content)),  # as stored
        run_id=digest(keys.measure),
        checkpoint=result.identity.checkpoint,
        n_of_m=windows_of(experiment, MaskSpec() if experiment.leaves_dense else spec, shapes),
        searched={"layers": {} if spec.patterns is None else {name: {"pattern": label(own)} for name, own in patterns}},
        cost=Cost(**budgets),
    )
    outcomes = {side: quality.test.outcomes for side, quality in qualities.items()}
    # fields of what happened once
    kinds = ("train_dense", "measure", "search", "timing", "evaluation")
    unknown = {"time", "dense_reused"} | {f"{kind}_seconds" for kind in kinds}
    if experiment.pattern.prunes:
        unknown |= {"prune_seconds", "recover_seconds"}
        unknown |= set() if budgets.get("recovery_samples") == 0 else {"recovery_samples_per_s"}
    once = ("recovery_gpu_busy_share", "migrated_from", *ENERGY)
    unknown |= {name for name in once if result.value_of(name) is not None}
    unknown |= {"latency_predicted_ms"} if isinstance(experiment.allocation, MeasuringAllocation) else set()
    unknown |= {name for name, value in budgets.items() if value is None}
    seals = ("record_sha256", "samples_sha256", "outcomes_sha256")
    changes: dict[str, Any] = {name: result.value_of(name) or "" for name in seals}  # checked before
    kind = experiment.control
    if kind is not None:
        unknown.add(f"{kind}_seconds")
        net = _load_stored(experiment, kind, keys.control, result.value_of(f"{kind}_weights_sha256"))
        if net is not None:
            quality, more = control.evaluate(experiment, net)
            changes, outcomes = changes | quality, outcomes | more
        else:
            held_out = experiment.dataset.valid_fraction
            unknown |= {name for name in FIELDS if kind in name and (held_out or not name.startswith("val_"))}
    if dense is None:
        sides = ("dense", "dense_low")
        outcomes = {side: one for side, one in outcomes.items() if side not in sides}
        ours = {name for name in FIELDS if name.removeprefix("val_").removesuffix("_standard_error") in sides}
        unknown |= {name for name in ours if now.value_of(name) is not None} | {"dense_weights_sha256"}
        extra = now.quality.extra_metrics
        changes["extra_metrics"] = extra | {one: result.quality.extra_metrics.get(one) for one in sides if one in extra}
    if dense is None or export is not None and result.identity.checkpoint != f"export/{digest(keys.export)}":
        unknown |= {"seed", "recovery_seed"} if experiment.pattern.prunes else {"seed"}
    if not same_device:
        unknown |= OF_DEVICE | asdict(here).keys()
    return now.with_values(changes), unknown, outcomes


def _load_stored(experiment: Experiment, kind: str, key: dict[str, Any] | None, sha256: str | None) -> nn.Module | None:
    """The network of a finished stage; None if it is not stored here, or differs from the record's."""
    with ArtifactStore(experiment.cache_dir, runnable=(), reuse=True) as store:
        stored = None if key is None else store.find(kind, key)
        net = None if stored is None else load_net(experiment, Path(stored.path) / WEIGHTS)
    return None if net is None or weights_digest(net) != sha256 else net


def device_of(facts: Identity | Provenance) -> tuple[str | None, int | None]:
    return facts.gpu or facts.processor, facts.threads  # threads of a processor
