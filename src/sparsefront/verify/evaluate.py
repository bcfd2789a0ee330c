"""Recompose the experiment of a stored result, and measure its metrics and speedup again."""

import copy
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefront.allocation.base import MeasuringAllocation
from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import CONTROLS
from sparsefront.errors import InvalidSetting, Obstacle, printable
from sparsefront.export.checkpoint import Export
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.accuracy import Evaluation
from sparsefront.measure.memory import achieved_sparsity, dense_layer_bytes, resident_bytes, weight_bytes
from sparsefront.networks import load_state, remove_blocks
from sparsefront.patterns.base import label
from sparsefront.patterns.blocks import windows_text
from sparsefront.progress import counted
from sparsefront.provenance import Provenance, provenance
from sparsefront.pruning.layers import KEEPS_ALL
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.results.candidates import split_of
from sparsefront.results.metric import Metric
from sparsefront.results.record import SCHEMA_VERSION, Identity, Result
from sparsefront.runs import composable_overrides
from sparsefront.stages.bench import EvalContext, SplitQuality, evaluate_splits
from sparsefront.stages.keys import dense_recipe, stage_keys
from sparsefront.stages.low_precision import dense_in
from sparsefront.stages.measure import SparseNetwork, kernel_names, measured_swap, swap_in
from sparsefront.stages.network import build_net, load_net, open_data, weights_digest
from sparsefront.stages.report import choice_of
from sparsefront.tasks.outcomes import BLEU, Outcomes
from sparsefront.training.fit import steps_per_epoch
from sparsefront.training.resume import WEIGHTS

# Recompose the experiment of a stored result.

Composed = tuple[Experiment, dict[str, Any]]
ON_CPU = {"measure.device": "cpu", "measure.dtype": "fp32", "trainer": "cpu"}


@contextmanager
def experiment_of(
    result: Result,
    row: Path,
    overrides: Sequence[str],
    composed: Callable[[Sequence[str]], AbstractContextManager[Composed]],
) -> Iterator[Composed]:
    """Context with the experiment composed from the overrides recorded next to the result, followed by these.

    If the result is of a GPU and there is none here, everything runs on the CPU in fp32.

    Args:
        composed: overrides -> their experiment, and its configuration as plain containers with interpolations unresolved,
            while Hydra's own settings are those of its run.
    Raises:
        InvalidSetting: they cannot be composed, or give another experiment than that of the result.
    """
    with composed(overrides_of(result, row, overrides)) as (experiment, configuration):
        _require_same(experiment, result)
        yield experiment, configuration


def overrides_of(result: Result, row: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides that compose the experiment of a stored result. Arguments and errors as in `experiment_of`."""
    return [*composable_overrides(row.parent, [*_without_gpu(result), *overrides]), "logger=none"]


def _without_gpu(result: Result) -> list[str]:
    if result.speed.latency_device != "cuda" or torch.cuda.is_available():
        return []
    return [f"{key}={value}" for key, value in ON_CPU.items()]


def _require_same(experiment: Experiment, result: Result) -> None:
    """Check that the choices equal those in the record. Training settings do not matter, because the weights are stored.

    Also ignored is what the result does not depend on, which it may have from another run or an earlier version: the kernel if
    none ran, the post-pruning part of a dense network's recipe, and the location of the data.
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
    here, there = composed.pop("dataset_split"), split_of(result)
    del stored["dataset_split"]
    if None not in (here, there) and here != there:
        allowed = (
            f"holds out by {here}, and the record is of {there}: split_by=rows or groups, and the version that made it"
        )
        raise InvalidSetting("dataset.split_by", experiment.dataset.split_by, allowed)
    composed |= {"sparsity": experiment.sparsity, "seed": experiment.seed}
    stored |= {"sparsity": result.sparsity.sparsity_target, "seed": result.identity.seed}
    if result.identity.recovery_seed is not None or result.identity.schema_version == SCHEMA_VERSION:
        composed["recovery_seed"] = experiment.recovery_seed if experiment.pattern.prunes else None
        stored["recovery_seed"] = result.identity.recovery_seed
    for name, value in stored.items():
        if result.identity.schema_version < SCHEMA_VERSION and isinstance(value, dict) and name in composed:
            part = getattr(experiment, name.removesuffix("_parameters"), None)
            composed[name] = _known_then(part, composed[name], value)
        # recipes are compared by their parameters: equal ones with two names share a result
        if name not in ("trainer_parameters", "recipe") and composed[name] != value:
            key, here, there = _first_other_choice(name, composed[name], value)
            raise InvalidSetting(key, here, f"is {there} in the record: add the run's own overrides to the command")


def _known_then(part: Any, here: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """A part's settings without those missing from an older record that have their default value."""
    defaults: dict[str, Any] = {}
    for item in fields(part) if is_dataclass(part) else ():
        made = item.default if item.default_factory is MISSING else item.default_factory()
        defaults[item.name] = made
    return {key: value for key, value in here.items() if key in stored or value != defaults.get(key, MISSING)}


def _first_other_choice(name: str, here: Any, stored: Any) -> tuple[str, Any, Any]:
    if isinstance(here, dict) and isinstance(stored, dict):
        for key in {**stored, **here}:
            if here.get(key) != stored.get(key):
                return f"{name}.{key}", here.get(key), stored.get(key)
    return name, here, stored


HOLDS, DIFFERS, SKIPPED, NOT_REPEATED = "holds", "DIFFERS", "not verified", "not repeated"
POINT = 0.001  # tolerance for rounding: a tenth of a point, or of a percent of a perplexity, or one sample
OTHER_OUTCOMES = 0.01  # tolerance for rounding: of the samples, or two
OTHER_TRANSLATIONS = 0.05  # as above, for translations, where one different token changes all later ones
CLOSE = 1e-6  # tolerance for rounding of outcomes that are not classes


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        what: the subject. verdict: HOLDS, DIFFERS or SKIPPED; NOT_REPEATED for a latency, which varies by itself.
        told: both values, or why it was skipped.
        decides: the result is not verified if this was skipped.
    """

    what: str
    verdict: str
    told: str
    decides: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.verdict}, {self.told}"


def tell(doing: str) -> None:
    """Report progress on stderr; stdout has only the answers."""
    print(printable(doing), file=sys.stderr, flush=True)


def _tell_evaluating(network: str, result: Result) -> None:
    samples = result.quality.evaluated_samples
    tell(f"evaluating {network}" + ("" if samples is None else f" on {counted(samples, 'sample')}") + " ...")


def measure_again(
    experiment: Experiment,
    result: Result,
    export: Export | None,
    spec: MaskSpec,
    outcomes: Mapping[str, Outcomes] | None,
    given: Sequence[str] = (),
) -> Iterator[Finding]:
    """Yield findings as they are made.

    Args:
        experiment: of the result.
        export: its network, checked against the record; None for pattern=dense.
        spec: of its masks.
        outcomes: network -> per-sample outcomes stored next to the record; None if not available.
        given: overrides that the run did not have.
    Raises:
        Obstacle: the data differs from that of the result.
    """
    yield from planned(experiment, result, given)
    tell("looking for the dense weights ...")
    dense = _dense_net(experiment, result)
    if export is None:
        if dense is None:
            yield NO_DENSE
            return
        yield _nothing_pruned(experiment, result, dense)
        bench = EvalContext.of(experiment, dense)
        yield from _conditions(bench, result, given)
        yield from _evaluated("dense", bench, dense, result, outcomes)
        yield from _evaluated_low(bench, dense, result, outcomes)
        if experiment.precision.is_low:
            low = dense_in(bench, bench.ready(dense), experiment.precision.mode)
            yield from _evaluated("sparse", bench, low, result, outcomes)
        yield from _timed_alone(bench, result, dense)
        return
    masked, whole = build_net(experiment), build_net(experiment)
    yield _sparsity(experiment, result, export, whole, spec)
    remove_blocks(masked, export.blocks or {})
    load_state(masked, export.state_dict())
    bench = EvalContext.of(experiment, masked)
    yield from _conditions(bench, result, given)
    same_dtype = bench.conditions()["dtype"] == result.speed.dtype
    if dense is None:
        yield NO_DENSE
    else:
        yield from _evaluated("dense", bench, dense, result, outcomes)
        yield from _evaluated_low(bench, dense, result, outcomes)
    yield from _continued(experiment, bench, result)
    yield from _evaluated("masked", bench, masked, result, outcomes)
    if same_dtype and result.size.weight_bytes_dense is not None:
        found = {"weight_bytes_dense": (result.size.weight_bytes_dense, weight_bytes(bench.ready(dense or whole)))}
        if bench.device.type == "cpu":
            net, size = dense or whole, result.size
            found["resident_bytes_dense"] = (size.resident_bytes_dense, resident_bytes(net, bench.device))
        yield _facts("size, dense", found)
    if result.quality.sparse is None:
        yield Finding("speedup", SKIPPED, "the record has none: no kernel was swapped in")
        return
    if (elsewhere := _other_device(result, bench)) is not None:
        tell("swapping kernels in ...")
        at = bench if bench.prompt is None else bench.of_prompts()
        sparse = swap_in(at, copy.deepcopy(masked), export)
        _tell_evaluating("sparse", result)
        yield from _compare("sparse", evaluate_splits(bench, sparse.net, "sparse"), result, outcomes)
        yield _kernels(result, export, sparse, bench, same_device=False)
        yield Finding("speedup", SKIPPED, elsewhere, decides=False)
        return
    # without the dense weights, dense is timed with other weights: latencies do not depend on values
    tell("swapping kernels in, and timing dense and sparse in turn ...")
    beside = bench.ready(dense or whole)
    sparse, speed, _ = measured_swap(bench, beside, lambda: copy.deepcopy(masked), export)
    _tell_evaluating("sparse", result)
    yield from _compare("sparse", evaluate_splits(bench, sparse.evaluated, "sparse"), result, outcomes)
    yield _kernels(result, export, sparse, bench, same_device=same_dtype)
    if result.speed.speedup is None or "speedup" not in speed:
        yield Finding("speedup", SKIPPED, "of references in low precision, on a CPU, nothing is timed", decides=False)
    else:
        yield _speedup(result, speed)


def planned(experiment: Experiment, result: Result, given: Sequence[str] = ()) -> Iterator[Finding]:
    """Checks that need no network: data, choices, and training length. Arguments and errors as in `measure_again`."""
    tell("reading the data ...")
    yield _data(experiment, result)
    yield _choice(experiment, result, given)
    yield _budgets(experiment, result)


NO_DENSE = Finding("accuracy, dense", SKIPPED, "the dense weights of the record are not stored here (--cache-dir)")


def _evaluated(
    side: str, bench: EvalContext, net: nn.Module, result: Result, outcomes: Mapping[str, Outcomes] | None
) -> Iterator[Finding]:
    _tell_evaluating(side, result)
    return _compare(side, evaluate_splits(bench, bench.ready(net), side), result, outcomes)


def _evaluated_low(
    bench: EvalContext, dense: nn.Module, result: Result, outcomes: Mapping[str, Outcomes] | None
) -> Iterator[Finding]:
    """Check the dense network in the record's low precision, if it has one."""
    precision = result.speed.dense_low_precision
    if result.quality.dense_low is None or precision is None:
        return iter(())
    if precision not in bench.experiment.dense_low:
        told = f"{precision} in the record, and the command measures dense in no such precision"
        return iter([Finding("accuracy, dense_low", SKIPPED, told, decides=False)])
    return _evaluated("dense_low", bench, dense_in(bench, bench.ready(dense), precision), result, outcomes)


def _timed_alone(bench: EvalContext, result: Result, dense: nn.Module) -> Iterator[Finding]:
    """For a result without a sparse network, time nothing; its device determines the final verdict."""
    if result.speed.latency_dense_ms is not None and (elsewhere := _other_device(result, bench)) is not None:
        yield Finding("latency", SKIPPED, elsewhere, decides=False)


def _choice(experiment: Experiment, result: Result, given: Sequence[str]) -> Finding:
    """Check the choices that `recorded_overrides` does not repeat."""
    quality, own = result.quality, [text for text in given if not text.startswith("cache_dir=")]
    unlimited = "all"
    pairs: dict[str, tuple[Any, Any]] = {
        "val_seen": (quality.val_seen, experiment.val_seen),
        "evaluate_limit": (quality.evaluate_limit or unlimited, experiment.measure.evaluate_limit or unlimited),
    }
    if not isinstance(experiment.allocation, MeasuringAllocation):
        pairs["latency_predicted_ms"] = (result.speed.latency_predicted_ms, None)
    if not own:
        pairs["trainer_parameters"] = (result.choice.trainer_parameters, experiment.trainer.cache_key())
    return _facts("choice", pairs)


def _conditions(bench: EvalContext, result: Result, given: Sequence[str]) -> Iterator[Finding]:
    """Check the conditions of evaluation and timing; reports differences due to another device."""
    speed, here = result.speed, bench.conditions()
    if speed.latency_device not in (None, bench.device.type):
        if speed.dtype != here["dtype"]:
            told = f"{speed.dtype} in the record, {here['dtype']} here: metrics may round otherwise"
            yield Finding("dtype", SKIPPED, told, decides=False)
    elif not any(text.lstrip("+").startswith("measure") for text in given):
        timed = speed.latency_device is not None
        known = here if timed else {key: here[key] for key in ("batch_size", "dtype")}
        if (
            result.kernels.low_precision_layers
            and here["precision"] not in result.kernels.low_precision_layers.values()
        ):
            known |= {"precision": here["dtype"]}  # no layer supported the requested one
        stated = {key: getattr(speed, key, None) for key in known if key != "layout"}
        yield _facts("conditions", {key: (value, known[key]) for key, value in stated.items()})


def _facts(what: str, pairs: Mapping[str, tuple[Any, Any]]) -> Finding:
    """Compare fields of the record with values here; fields missing from the record are skipped."""
    looked_at = {key: pair for key, pair in pairs.items() if pair[0] is not None}
    for key, (stored, now) in looked_at.items():
        if stored != now:
            key, stored, now = _first_difference(key, stored, now)
            return Finding(what, DIFFERS, f"{key} is {stored} in the record, {now} now")
    if not looked_at:
        return Finding(what, SKIPPED, "the record does not say", decides=False)
    return Finding(what, HOLDS, ", ".join(looked_at))


def _first_difference(key: str, stored: Any, now: Any) -> tuple[str, Any, Any]:
    """The first differing entry of mappings."""
    if isinstance(stored, dict) and isinstance(now, dict):
        for name in {**stored, **now}:
            if stored.get(name) != now.get(name):
                return f"{key}[{name}]", stored.get(name), now.get(name)
    return key, stored, now


def _budgets(experiment: Experiment, result: Result) -> Finding:
    """Compare steps, epochs and samples of both trainings with their plans for this data."""
    data = open_data(experiment)
    steps = steps_per_epoch(data, experiment.trainer)
    epochs = experiment.recipe.epochs
    cost, per_epoch = result.cost, _samples_per_epoch(experiment, data)
    planned: dict[str, tuple[Any, Any]] = {
        "dense_steps": (cost.dense_steps, epochs * steps),
        "dense_samples": (cost.dense_samples, None if per_epoch is None else epochs * per_epoch),
    }
    if experiment.pattern.prunes:
        training = experiment.recovery.training
        taken, whole = 0, 0
        for index in range(experiment.recovery_rounds if isinstance(training, TrainingRecovery) else 0):
            plan = training.plan_of_round(experiment.recipe, steps, index, experiment.recovery_rounds)
            taken, whole = taken + plan.total_steps(steps), whole + plan.epochs * steps
        planned["recovery_steps"] = (cost.recovery_steps, taken)
        if taken == whole:  # otherwise rounds end within an epoch
            trained = whole // steps
            planned["recovery_epochs"] = (cost.recovery_epochs, trained)
            planned["recovery_samples"] = (cost.recovery_samples, None if per_epoch is None else trained * per_epoch)
    known = {key: (stored, now) for key, (stored, now) in planned.items() if now is not None}
    return _facts("training", known)


def _samples_per_epoch(experiment: Experiment, data: Any) -> int | None:
    """Number of samples in all batches of an epoch; None if several processes share them."""
    if experiment.trainer.world_size > 1:
        return None
    loader, limit, size = data.train_dataloader(), experiment.trainer.limit_batches, experiment.recipe.batch_size
    by_tokens = getattr(experiment.dataset, "batch_tokens", None) is not None
    if limit is not None and limit < len(loader):
        return None if by_tokens or getattr(experiment.dataset, "group_by_length", False) else limit * size
    rows = len(loader.dataset)
    return rows if by_tokens or len(loader) == math.ceil(rows / size) else len(loader) * size


def _data(experiment: Experiment, result: Result) -> Finding:
    """Check that the data is the record's: metrics on other data mean nothing."""
    stored, found = result.identity.dataset_digest, digest(experiment.dataset.content())
    if stored is None:
        return Finding("data", SKIPPED, "the record is of an earlier version, which held no dataset_digest")
    if found != stored:
        how = f"is not what the result was measured on: dataset_digest is {stored} in the record, {found} here"
        raise Obstacle("data", None, f"{how}; name the run's own data (dataset.path=...), in the same files")
    return Finding("data", HOLDS, f"dataset_digest {stored}")


def initial_weights(experiment: Experiment, result: Result) -> Finding:
    """Check that training would start from the record's weights: from others it gives another network."""
    stored, here = result.identity.initial_weights, experiment.model.fingerprint()
    name = " ".join(filter(None, (result.choice.model, result.choice.model_variant)))
    if stored is None:
        why = f"the record is of an earlier version, which did not name those of {name}: from others all numbers differ"
        return Finding("initial weights", SKIPPED, why, decides=False)
    if stored != here:
        how = f"of {name} are {json.dumps(stored)} in the record, {json.dumps(here)} here; name the record's (model.path=...)"
        return Finding("initial weights", DIFFERS, how)
    return Finding("initial weights", HOLDS, f"of {name}, as in the record")


def _dense_net(experiment: Experiment, result: Result) -> nn.Module | None:
    """The dense network of the record, if the cache has it."""
    return _stored_net(experiment, "dense", stage_keys(experiment).dense, result.identity.dense_weights_sha256)


def _continued(experiment: Experiment, bench: EvalContext, result: Result) -> Iterator[Finding]:
    """Check the metric of the control, the baseline for points lost; nothing if the record has none."""
    for control in CONTROLS:
        if result.value_of(control) is None:
            continue
        key = stage_keys(experiment).control if control == experiment.control else None
        digest = result.value_of(f"{control}_weights_sha256")
        net = None if key is None else _stored_net(experiment, control, key, digest)
        if net is None:
            what = f"{result.quality.metric_name}, {control}"
            yield Finding(what, SKIPPED, "the weights of the dense network trained on are not stored here")
            continue
        yield from _compare(control, evaluate_splits(bench, bench.ready(net), "dense, trained on"), result)


def _stored_net(experiment: Experiment, kind: str, key: dict[str, Any], digest: str | None) -> nn.Module | None:
    """The network of a finished stage; None if it is not stored here, or differs from the record's."""
    with ArtifactStore(experiment.cache_dir, runnable=(), reuse=True) as store:
        stored = store.find(kind, key)
        net = None if stored is None else load_net(experiment, Path(stored.path) / WEIGHTS)
    return None if net is None or weights_digest(net) != digest else net


def _nothing_pruned(experiment: Experiment, result: Result, net: nn.Module) -> Finding:
    layers = dict.fromkeys(experiment.model.prunable(net), 0.0)
    pairs = {"sparsity_achieved": (result.sparsity.sparsity_achieved, 0.0)}
    return _facts("sparsity", pairs | {"sparsity_per_layer": (result.sparsity.sparsity_per_layer, layers)})


def _sparsity(experiment: Experiment, result: Result, export: Export, net: nn.Module, spec: MaskSpec) -> Finding:
    """Check the sparsities in the record against the masks."""
    stored, manifest = result.sparsity, export.manifest
    found = achieved_sparsity(net, export.masks, experiment.model.prunable(net))
    whole = [name for name, sparsity in found.layers.items() if sparsity == 0]
    dense = dict.fromkeys(whole, KEEPS_ALL) | manifest.dense_layers
    own = {
        name: (record.shape, spec.sparsity_of(name, experiment.sparsity)) for name, record in manifest.layers.items()
    }
    pairs = {
        "sparsity_achieved": (stored.sparsity_achieved, found.sparsity_achieved),
        "sparsity_whole_model": (stored.sparsity_whole_model, found.sparsity_whole_model),
        "sparsity_per_layer": (stored.sparsity_per_layer, found.layers),
        "dense_layers": (stored.dense_layers, dense),
        "dense_weight_shares": (stored.dense_weight_shares, {name: found.weight_shares[name] for name in dense}),
        "n_of_m": (stored.n_of_m or "", windows_text(experiment.pattern, own) or ""),
    }
    if experiment.leaves_dense:  # the export does not know the windows of lifted masks
        del pairs["n_of_m"]
    told = {name: text for name, text in stored.pattern_per_layer.items() if text != "dense"}
    if told:
        pairs["pattern_per_layer"] = (told, {name: label(own) for name, own in (spec.patterns or {}).items()})
    return _facts("sparsity", pairs)


def _compare(
    side: str, found: SplitQuality, result: Result, outcomes: Mapping[str, Outcomes] | None = None
) -> Iterator[Finding]:
    """Compare the metrics of one network on both splits, with standard errors, and sample by sample."""
    metric = result.quality.metric_name
    for split, evaluation in (("", found.test), ("val_", found.val)):
        stored = result.value_of(f"{split}{side}")
        if stored is None or evaluation is None:
            continue
        what = f"{metric}, {side}" + (", held out" if split else "")
        told = Metric(metric)
        now, allowed = evaluation.metrics[metric], max(POINT, 1 / evaluation.samples)
        if told.less_is_better:
            allowed = POINT * stored
        verdict = HOLDS if abs(now - stored) <= allowed + 1e-9 else DIFFERS
        unit = metric if told.less_is_better else "points"
        equal = "equal" if now == stored else f"apart by {told.scale * abs(now - stored):.3g} {unit}"
        yield Finding(what, verdict, f"{told.scale * stored:.3f} in the record, {told.scale * now:.3f} now, {equal}")
        if (wrong := _wrong_beside(split, side, evaluation, result, exact=now == stored)) is not None:
            yield Finding(what, DIFFERS, wrong)
    if outcomes is not None and side in outcomes and found.test.outcomes is not None:
        yield _outcomes(side, outcomes[side], found.test.outcomes)


def _wrong_beside(split: str, side: str, evaluation: Evaluation, result: Result, *, exact: bool) -> str | None:
    """What else in the record contradicts an evaluation; None if nothing does."""
    quality, metric = result.quality, result.quality.metric_name
    samples = result.value_of(f"{split}evaluated_samples")
    if samples != evaluation.samples:
        return f"{split}evaluated_samples is {samples} in the record, {evaluation.samples} now"
    key, error = f"{split}{side}_standard_error", evaluation.standard_errors[metric]
    if not math.isclose(result.value_of(key) or 0.0, error, rel_tol=CLOSE if exact else 0.1, abs_tol=CLOSE):
        return f"{key} is {result.value_of(key)} in the record, {error} now"
    if split or side in CONTROLS:
        return None
    others, there = quality.extra_metrics.get(side, {}), evaluation.metrics.keys() - {metric}
    if others.keys() != there:
        return f"extra_metrics of {side} are {sorted(others)} in the record, {sorted(there)} now"
    for name, value in others.items():
        now = evaluation.metrics[name]
        if not abs(value - now) <= max(POINT, 1 / evaluation.samples) + 1e-9:
            return f"extra_metrics of {side}: {name} is {value} in the record, {now} now"
    return None


def _outcomes(side: str, stored: Outcomes, now: Outcomes) -> Finding:
    """Compare sample by sample: a few may differ by rounding; larger edits could at most preserve the mean."""
    what = f"outcomes, {side}"
    if stored.samples != now.samples or len(stored) != len(now):
        return Finding(what, DIFFERS, "outcomes.npz is of other samples than those evaluated now")
    differ = int((abs(stored.values.astype(float) - now.values.astype(float)) > CLOSE).sum())
    if stored.labels is not None and now.labels is not None and (stored.labels != now.labels).any():
        return Finding(what, DIFFERS, "outcomes.npz has other labels than the data")
    share = OTHER_TRANSLATIONS if now.metric == BLEU else OTHER_OUTCOMES
    allowed = max(2, int(share * len(now)))
    verdict = HOLDS if differ <= allowed else DIFFERS
    return Finding(what, verdict, f"{differ} of {len(now)} samples differ from outcomes.npz")


def _kernels(
    result: Result, export: Export, sparse: SparseNetwork, bench: EvalContext, *, same_device: bool
) -> Finding:
    """Check each layer's kernel: on the record's device against the choice now, elsewhere against masks and shapes."""
    stored, report, now = result.kernels, sparse.report, _layers_of(sparse.report)
    pairs: dict[str, tuple[Any, Any]] = {"layers": (sorted(stored.kernel_per_layer), sorted(now))}
    keys = ("density", "m", "k", "n")
    if same_device and bench.device.type == "cpu":  # on a GPU the fastest kernel may change between timings
        keys = (*keys, "chosen", "family", "weight_bytes")
        pairs |= {
            "sparse_layer_share": (stored.sparse_layer_share, report.sparse_layer_share),
            "sparse_flops_share": (stored.sparse_flops_share, report.sparse_flops_share),
            "latency_kernel": (result.speed.latency_kernel, kernel_names(report, bench.device)),
            "layout": (result.speed.layout, report.fusion.layout),
            "fused_blocks": (stored.fused_blocks, report.fusion.to_json()["fused_blocks"]),
            "weight_bytes_sparse": (result.size.weight_bytes_sparse, weight_bytes(sparse.net)),
            "resident_bytes_sparse": (result.size.resident_bytes_sparse, resident_bytes(sparse.net, bench.device)),
            "dense_bytes_per_layer": (
                result.size.dense_bytes_per_layer,
                dense_layer_bytes(sparse.net, result.sparsity.sparsity_per_layer, export.spec.name_left),
            ),
        }
    for layer, told in stored.kernel_per_layer.items():
        for key in keys:
            if key in told or key in now.get(layer, {}):
                pairs[f"{layer}.{key}"] = (told.get(key, "nothing"), now.get(layer, {}).get(key, "nothing"))
    finding = _facts("kernels", pairs)
    if finding.verdict == HOLDS:
        return Finding("kernels", HOLDS, f"{', '.join(keys)} of {counted(len(now), 'layer')}")
    return finding


def _layers_of(report: SwapReport) -> dict[str, dict[str, Any]]:
    """Layer -> timing-independent facts about its kernel and product, as in a result."""
    layers = {name: layer.to_json() for name, layer in report.layers.items()}
    for name, seen in report.problems.items():
        if name in layers:
            layers[name] |= {"m": seen.problem.m, "k": seen.problem.k, "n": seen.problem.n}
    return layers


def _other_device(result: Result, bench: EvalContext) -> str | None:
    """Why latencies here cannot be compared with the record's; None if they can."""
    stored, present = map(device_of, (result.identity, provenance(bench.device)))
    if stored == present:
        return None
    return f"measured on {stored}, which is not here (this is {present}): the speedup is taken on trust"


def device_of(facts: Identity | Provenance) -> str:
    """The measured device: GPU, or processor with threads (missing in older records)."""
    threads = "" if facts.threads is None else f" with {counted(facts.threads, 'thread')}"
    return f"{facts.gpu or facts.processor}{threads}"


def _speedup(result: Result, speed: dict) -> Finding:
    """Check whether the speedup lies within the record's interval."""
    stored, low, high = (getattr(result.speed, f"speedup{end}") for end in ("", "_low", "_high"))
    now = speed["speedup"]
    if None in (low, high, speed["speedup_low"]):
        told = f"{stored:.3f} in the record, {now:.3f} now: one of the two has no interval"
        return Finding("interval of the speedup", SKIPPED, told, decides=False)
    told = (
        f"{stored:.3f} in the record ({low:.3f} to {high:.3f}), {now:.3f} now "
        f"({speed['speedup_low']:.3f} to {speed['speedup_high']:.3f})"
    )
    within = low <= now <= high
    verdict = HOLDS if within else NOT_REPEATED
    return Finding("speedup", verdict, f"{told}: {'within' if within else 'not within'} its interval", decides=False)
