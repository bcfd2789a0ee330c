"""The points of the study: what each is called, how it is trained and judged, and the line that it becomes."""

import hashlib
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsefront.artifacts.csv_lines import append_line

CONF = Path(__file__).resolve().parents[2] / "conf"

# Each adds one thing to the one before, the first being the method of the authors' public code; the last leaves tiles narrow.
_SOURCES = {"whole_tiles": "false", "input_multiple": "1", "aggregate": "l2_over_length"}
VARIANTS: dict[str, dict[str, str]] = {
    "sources": _SOURCES,
    "whole_tiles": _SOURCES | {"whole_tiles": "true"},
    "whole_tiles_16": _SOURCES | {"whole_tiles": "true", "input_multiple": "16"},
    "whole_tiles_16_rms": {"whole_tiles": "true", "input_multiple": "16", "aggregate": "rms"},
    "narrow_16_rms": {"whole_tiles": "false", "input_multiple": "16", "aggregate": "rms"},
}


@dataclass(frozen=True)
class Point:
    """One line of the study."""

    variant: str
    granularity: int
    allocation: str
    sparsity: float
    seed: int

    @property
    def overrides(self) -> list[str]:
        """What `run.py` takes to choose it; a dense one depends on nothing but its seed."""
        if self.variant == "dense":
            return ["pattern=dense", f"seed={self.seed}"]
        settings = [f"pattern.{key}={value}" for key, value in VARIANTS[self.variant].items()]
        return [
            "pattern=tile_wise",
            f"granularity={self.granularity}",
            f"allocation={self.allocation}",
            f"sparsity={self.sparsity:g}",
            f"seed={self.seed}",
            *settings,
        ]


def dense(seed: int) -> Point:
    """The dense network that the points of a seed share."""
    return Point("dense", 0, "none", 0.0, seed)


@dataclass(frozen=True)
class Job:
    """What all points share.

    Args:
        model, data: folders of the network and of GLUE.
        cache: where finished stages are kept.
        overrides: of run.py, beside those of a point.
    """

    model: Path
    data: Path
    cache: Path
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What one training gave.

    Args:
        metric_name: of val_metric (the held-out part of train, for choices) and dev_metric, both fractions.
        sparsity_achieved: over all prunable weights.
        min_layer_density: of the layer that keeps the smallest fraction.
        longest_tile: inputs of the longest tile over the mean of its layer, in the layer where that is the most.
        seconds: of training, beside the others, and of judging; nearly none where the stages were finished before.
        provenance: device, versions, commit and date.
    """

    metric_name: str
    val_metric: float
    dev_metric: float
    sparsity_achieved: float
    min_layer_density: float
    longest_tile: float
    seconds: float
    provenance: dict[str, Any]


def experiment_of(job: Job, point: Point) -> Any:
    """The experiment that `run.py` would have with the overrides of this point."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    import sparsefront.config  # noqa: F401  registers the root's schema and resolvers
    from sparsefront.validate import validate

    shared = [
        "experiment=bert_sst2",
        f"model.path={job.model}",
        f"dataset.path={job.data}",
        f"cache_dir={job.cache}",
        "kernel=none",
        "logger=none",
        "trainer.progress_bar=false",
        "trainer.checkpoint=false",
        "measure.batch_size=256",
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=[*shared, *point.overrides, *job.overrides], return_hydra_config=True)
    with open_dict(config):
        config.hydra.runtime.output_dir = str(job.cache)  # the stages that run here write nothing into it
        HydraConfig.instance().set_config(config)
        del config["hydra"]
    return validate(config)


def mask_digest(job: Job, point: Point) -> str:
    """Make the masks of a point, and tell by which bytes other masks are the same."""
    from sparsefront.pruning.mask_file import MASKS, load_masks

    experiment = experiment_of(job, point)
    store, keys, trained = _dense(experiment)
    masks = load_masks(_pruned(experiment, store, keys, trained).path / MASKS)
    return hashlib.sha256(b"".join(masks[name].numpy().tobytes() for name in sorted(masks))).hexdigest()


def finish(job: Job, point: Point) -> Result:
    """Train a point, unless its stages are finished, and judge it on both splits."""
    from sparsefront.masks.weight_view import as_matrix
    from sparsefront.measure.accuracy import evaluate
    from sparsefront.measure.sparsity import achieved_sparsity
    from sparsefront.provenance import provenance
    from sparsefront.pruning.mask_file import MASKS, load_masks
    from sparsefront.stages import recover
    from sparsefront.stages.network import load_net, make_task, open_data
    from sparsefront.training.epoch_weights import WEIGHTS

    start = time.perf_counter()
    experiment = experiment_of(job, point)
    store, keys, trained = _dense(experiment)
    masks = {}
    if point.variant != "dense":
        pruned = _pruned(experiment, store, keys, trained)
        trained = recover.run(experiment, store, keys.recover, trained, pruned, [])
        masks = load_masks(trained.path / MASKS)
    net = load_net(experiment, trained.path / WEIGHTS)
    achieved = achieved_sparsity(net, masks, experiment.model.prunable(net))
    settings, task = experiment.measure, make_task(experiment, net)
    data = open_data(experiment, batch_size=settings.batch_size)
    where = {"device": settings.torch_device, "dtype": settings.torch_dtype, "limit": settings.evaluate_limit}
    val, dev = (evaluate(task, net, data, split, **where).metrics[task.metric_name] for split in ("val", "test"))
    facts = provenance(settings.torch_device)
    return Result(
        metric_name=task.metric_name,
        val_metric=val,
        dev_metric=dev,
        sparsity_achieved=achieved.sparsity_achieved,
        min_layer_density=1 - max(achieved.layers.values()),
        longest_tile=max((_longest_tile(as_matrix(mask), point.granularity) for mask in masks.values()), default=1.0),
        seconds=time.perf_counter() - start,
        provenance={
            "device": facts.gpu or "cpu",
            "torch": facts.torch_version,
            "transformers": facts.transformers_version,
            "lightning": facts.lightning_version,
            "commit": facts.commit,
            "date": datetime.now(UTC).date().isoformat(),
        },
    )


def _dense(experiment: Any) -> tuple[Any, Any, Any]:
    """The store, its keys and the dense network, trained by whichever worker comes first."""
    from sparsefront.artifacts.store import ArtifactStore
    from sparsefront.stages import dense
    from sparsefront.stages.keys import stage_keys

    store = ArtifactStore(experiment.cache_dir, runnable=experiment.stages, reuse=True)
    keys = stage_keys(experiment)
    return store, keys, dense.run(experiment, store, keys.dense, [])


def _pruned(experiment: Any, store: Any, keys: Any, trained: Any) -> Any:
    """The first and only masks of a point: the schedule is one_shot."""
    from sparsefront.stages import prune

    return prune.run(experiment, store, keys.prune, trained)


def _longest_tile(mask: Any, width: int) -> float:
    """Inputs of the longest tile over the mean; mask: bool [N, K]. 1 where no output survives."""
    rows = mask[mask.any(dim=1)]
    if len(rows) == 0:
        return 1.0
    inputs = rows[::width].sum(dim=1).float()
    return float(inputs.max() / inputs.mean())


def append_row(path: Path, point: Point, result: Result, *, same_masks_as: str) -> None:
    """Add one line; the first makes the file. same_masks_as: the variant whose training this line tells, or ""."""
    found = asdict(result)
    facts = found.pop("provenance")
    row = asdict(point) | found | {"same_masks_as": same_masks_as} | facts
    cells = {key: f"{value:.6g}" if key in found and isinstance(value, float) else value for key, value in row.items()}
    append_line(path, cells)
