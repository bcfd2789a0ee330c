"""The metric and the speedup of a stored result, measured again."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.artifacts.digest import digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.counted import counted
from sparsefront.errors import Obstacle
from sparsefront.experiment import Experiment
from sparsefront.export.checkpoint import Export
from sparsefront.inference.fusion.fuse import fused_dense_graph
from sparsefront.measure.sparsity import achieved_sparsity
from sparsefront.provenance import Provenance, provenance
from sparsefront.report.result import Result
from sparsefront.report.result_identity import Identity
from sparsefront.stages.bench import Bench
from sparsefront.stages.control import KIND as CONTROL
from sparsefront.stages.keys import stage_keys
from sparsefront.stages.network import build_net, load_net, weights_digest
from sparsefront.stages.quality import SplitQuality, evaluate_splits
from sparsefront.stages.speed import measured_swap, swap_in
from sparsefront.training.epoch_weights import WEIGHTS

HOLDS, DIFFERS, SKIPPED = "holds", "DIFFERS", "not verified"
POINT = 0.001  # a tenth of a point, or one sample: what other rounding of the same weights may change


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: in words. verdict: HOLDS, DIFFERS or SKIPPED.
        told: both values, or why it was not looked at.
        decides: the result is not verified where this differs; latencies vary by themselves, so they do not.
    """

    what: str
    verdict: str
    told: str
    decides: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.verdict}, {self.told}"


def measure_again(experiment: Experiment, result: Result, export: Export | None) -> Iterator[Finding]:
    """Findings, as they are made.

    Args:
        experiment: the one that the result is of.
        export: its network, checked against the record; None for pattern=dense.
    Raises:
        Obstacle: the data is not what the result was measured on.
    """
    yield _data(experiment, result)
    dense = _dense_net(experiment, result)
    if export is None:
        if dense is None:
            yield Finding("accuracy, dense", SKIPPED, "the dense weights of the record are not stored here")
            return
        bench = Bench.of(experiment, dense)
        yield from _compare("dense", evaluate_splits(bench, bench.ready(dense), "dense"), result)
        return
    masked = build_net(experiment)
    masked.load_state_dict(export.state_dict())
    yield _sparsity(experiment, result, export, masked)
    bench = Bench.of(experiment, masked)
    if bench.conditions()["dtype"] != result.speed.dtype:
        told = f"{result.speed.dtype} in the record, {bench.conditions()['dtype']} here"
        yield Finding("dtype", SKIPPED, f"{told}: metrics may round otherwise")
    if dense is None:
        yield Finding("accuracy, dense", SKIPPED, "the dense weights of the record are not stored here")
    else:
        yield from _compare("dense", evaluate_splits(bench, bench.ready(dense), "dense"), result)
    yield from _continued(experiment, bench, result)
    yield from _compare("masked", evaluate_splits(bench, bench.ready(masked), "masked"), result)
    if result.quality.sparse is None:
        yield Finding("speedup", SKIPPED, "the record has none: no kernel was swapped in")
        return
    if (elsewhere := _other_device(result, bench)) is not None:
        sparse = swap_in(bench, copy.deepcopy(masked), export)
        yield from _compare("sparse", evaluate_splits(bench, sparse.net, "sparse"), result)
        yield Finding("speedup", SKIPPED, elsewhere, decides=False)
        return
    # without the dense weights their layers are timed with others: latencies do not depend on values
    beside = bench.ready(dense or masked)
    sparse, speed, _ = measured_swap(bench, beside, lambda: copy.deepcopy(masked), export, fused_dense_graph)
    yield from _compare("sparse", evaluate_splits(bench, sparse.net, "sparse"), result)
    yield _speedup(result, speed)


def _data(experiment: Experiment, result: Result) -> Finding:
    """Whether the data is the record's: on other data no metric says anything about the result."""
    stored, found = result.identity.dataset_digest, digest(experiment.dataset.content())
    if stored is None:
        return Finding("data", SKIPPED, "the record is of an earlier version, which held no dataset_digest")
    if found != stored:
        how = f"is not what the result was measured on: dataset_digest is {stored} in the record, {found} here"
        raise Obstacle("data", None, f"{how}; name the run's own data (dataset.path=...), in the same files")
    return Finding("data", HOLDS, f"dataset_digest {stored}")


def _dense_net(experiment: Experiment, result: Result) -> nn.Module | None:
    """The dense network of the record, where the cache of this run's settings has it."""
    return _stored_net(experiment, "dense", stage_keys(experiment).dense, result.identity.dense_weights_sha256)


def _continued(experiment: Experiment, bench: Bench, result: Result) -> Iterator[Finding]:
    """The metric of the control, against which points lost are told; nothing where the record has none."""
    if result.quality.dense_continued is None:
        return
    key, digest = stage_keys(experiment).control, result.identity.dense_continued_weights_sha256
    net = None if key is None else _stored_net(experiment, CONTROL, key, digest)
    if net is None:
        what = f"{result.quality.metric_name}, {CONTROL}"
        yield Finding(what, SKIPPED, "the weights of the dense network trained on are not stored here")
        return
    yield from _compare(CONTROL, evaluate_splits(bench, bench.ready(net), "dense, trained on"), result)


def _stored_net(experiment: Experiment, kind: str, key: dict[str, Any], digest: str | None) -> nn.Module | None:
    """The network of a finished stage; None where it is not stored here, or is another one than the record's."""
    with ArtifactStore(experiment.cache_dir, runnable=(), reuse=True) as store:
        stored = store.find(kind, key)
        net = None if stored is None else load_net(experiment, Path(stored.path) / WEIGHTS)
    return None if net is None or weights_digest(net) != digest else net


def _sparsity(experiment: Experiment, result: Result, export: Export, net: nn.Module) -> Finding:
    found = achieved_sparsity(net, export.masks, experiment.model.prunable(net)).sparsity_achieved
    stored = result.sparsity.sparsity_achieved
    return Finding("sparsity", HOLDS if found == stored else DIFFERS, f"{stored} in the record, {found} now")


def _compare(side: str, found: SplitQuality, result: Result) -> Iterator[Finding]:
    """The metric of one network on both splits."""
    metric = result.quality.metric_name
    for split, evaluation in (("", found.test), ("val_", found.val)):
        stored = result.value_of(f"{split}{side}")
        if stored is None or evaluation is None:
            continue
        now, allowed = evaluation.metrics[metric], max(POINT, 1 / evaluation.samples)
        verdict = HOLDS if abs(now - stored) <= allowed + 1e-9 else DIFFERS
        what = f"{metric}, {side}" + (", held out" if split else "")
        equal = "equal" if now == stored else f"apart by {100 * abs(now - stored):.3g} points"
        yield Finding(what, verdict, f"{100 * stored:.3f} in the record, {100 * now:.3f} now, {equal}")


def _other_device(result: Result, bench: Bench) -> str | None:
    """Why latencies of this place say nothing about the record's; None where they do."""
    stored, present = map(_device_of, (result.identity, provenance(bench.device)))
    if stored == present:
        return None
    return f"measured on {stored}, which is not here (this is {present}): the speedup is taken on trust"


def _device_of(facts: Identity | Provenance) -> str:
    """The GPU, or the processor with its threads, which an older record does not tell."""
    threads = "" if facts.threads is None else f" with {counted(facts.threads, 'thread')}"
    return f"{facts.gpu or facts.processor}{threads}"


def _speedup(result: Result, speed: dict) -> Finding:
    """Whether the ratio lies within the record's interval."""
    stored, low, high = (getattr(result.speed, f"speedup{end}") for end in ("", "_low", "_high"))
    now = speed["speedup"]
    told = (
        f"{stored:.3f} in the record ({low:.3f} to {high:.3f}), {now:.3f} now "
        f"({speed['speedup_low']:.3f} to {speed['speedup_high']:.3f})"
    )
    within = low <= now <= high
    verdict = HOLDS if within else DIFFERS
    return Finding("speedup", verdict, f"{told}: {'within' if within else 'not within'} its interval", decides=False)
