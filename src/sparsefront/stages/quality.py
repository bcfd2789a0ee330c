"""Accuracy of a run's networks on both splits: the one that is reported, and the part of train by which choices are made."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.artifacts.store import ArtifactStore
from sparsefront.measure.accuracy import Evaluation
from sparsefront.stages.bench import Bench
from sparsefront.stages.keys import StageKeys
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes

log = logging.getLogger(__name__)
OUTCOMES = "outcomes.npz"


@dataclass(frozen=True)
class SplitQuality:
    """What one network scored on `test`, and on the held-out part of train; None where nothing is held out."""

    test: Evaluation
    val: Evaluation | None


def evaluate_splits(bench: Bench, net: nn.Module, what: str) -> SplitQuality:
    """Evaluate a network.

    Args:
        what: the network, for the progress bar.
    """
    val = bench.quality(net, f"{what}, held out", "val") if bench.experiment.dataset.valid_fraction else None
    return SplitQuality(bench.quality(net, what), val)


def evaluate_dense(store: ArtifactStore, keys: StageKeys, bench: Bench, net: nn.Module) -> SplitQuality:
    """The dense network's metrics: evaluated once for all points of a sweep."""

    def make(folder: Path) -> None:
        log.info("measure: accuracy of the dense network on %s", bench.device.type)
        found = evaluate_splits(bench, net, "dense")
        told = {
            split: None if kept is None else asdict(replace(kept, outcomes=None)) for split, kept in vars(found).items()
        }
        (folder / "quality.json").write_text(json.dumps(told))
        save_outcomes(folder / OUTCOMES, {"dense": found.test.outcomes})

    stored = store.get_or_create("dense_quality", keys.dense_quality, make, stage="measure")
    told = stored.read_json("quality.json")
    found = SplitQuality(**{split: None if kept is None else Evaluation(**kept) for split, kept in told.items()})
    return replace(found, test=replace(found.test, outcomes=load_outcomes(stored.path / OUTCOMES)["dense"]))


def save_all_outcomes(folder: Path, qualities: dict[str, SplitQuality]) -> None:
    """What each sample of the reporting split adds to the metric, of every network, into one file."""
    save_outcomes(folder / OUTCOMES, {side: found.test.outcomes for side, found in qualities.items()})


def quality_fields(bench: Bench, qualities: dict[str, SplitQuality]) -> dict[str, Any]:
    """Group `quality` of the result.

    Args:
        qualities: dense, masked or sparse -> what it scored.
    """
    metric = bench.task.metric_name
    extra = {
        side: {name: value for name, value in found.test.metrics.items() if name != metric}
        for side, found in qualities.items()
    }
    held_out = {side: found.val for side, found in qualities.items() if found.val is not None}
    return {
        "metric_name": metric,
        **{side: found.test.metrics[metric] for side, found in qualities.items()},
        **{f"{side}_standard_error": found.test.standard_errors[metric] for side, found in qualities.items()},
        **{f"val_{side}": found.metrics[metric] for side, found in held_out.items()},
        **{f"val_{side}_standard_error": found.standard_errors[metric] for side, found in held_out.items()},
        "extra_metrics": {side: found for side, found in extra.items() if found},
        "evaluate_limit": bench.experiment.measure.evaluate_limit,
        "evaluated_samples": qualities["dense"].test.samples,
        "val_evaluated_samples": held_out["dense"].samples if held_out else None,
    }
