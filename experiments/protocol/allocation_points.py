"""The points of the study of allocations: what each is called, how it is trained and evaluated, and the line that it becomes."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsefront.artifacts.csv_lines import append_line

CONF = Path(__file__).resolve().parents[2] / "conf"
LOW = 0.01  # density below which a layer counts as lost


@dataclass(frozen=True)
class Network:
    """A model on a data set.

    Args:
        overrides: of run.py.
        folders: key of the configuration -> the argument of the study that names its folder.
        sparsities, seeds: what the study takes of it unless it is told otherwise.
    """

    overrides: tuple[str, ...]
    folders: dict[str, str]
    sparsities: tuple[float, ...] = (0.75,)
    seeds: tuple[int, ...] = (0, 1, 2)


_BERT = {"model.path": "bert", "dataset.path": "glue"}
NETWORKS = {
    "digits": Network(("model=vit_small", "dataset=digits", "recipe.recovery_epochs=1"), {}, (0.5, 0.75, 0.9)),
    "sst2": Network(("experiment=bert_sst2",), _BERT),
    "mrpc": Network(("model=bert", "dataset=glue", "dataset.task=mrpc"), _BERT),
    "cifar10": Network(("model=vit_small", "dataset=cifar10"), {"dataset.path": "cifar10"}, seeds=(0,)),
}
ALLOCATIONS = {
    "per_layer": ("allocation=per_layer",),
    "global_threshold": ("allocation=global_threshold",),
    "min_density": ("allocation=global_threshold", "allocation.min_density_share=0.2"),
}
# pattern -> (allocation, score of a group); the first is the default of today
VARIANTS = {
    "tile_wise": (
        ("per_layer", "rms"),
        ("global_threshold", "rms"),
        ("min_density", "rms"),
        ("global_threshold", "l2_over_length"),
        ("per_layer", "mean"),
    ),
    # All groups are equally long: a correction for the length changes nothing, but l1 may rank otherwise than l2.
    "vector_wise": (("per_layer", "l2"), ("global_threshold", "l2"), ("min_density", "l2"), ("per_layer", "l1")),
    "block_wise": (("per_layer", "l2"), ("global_threshold", "l2"), ("min_density", "l2"), ("per_layer", "l1")),
}


@dataclass(frozen=True)
class Point:
    """One line of the study."""

    network: str
    pattern: str
    sparsity: float
    allocation: str
    aggregate: str
    seed: int

    @property
    def overrides(self) -> list[str]:
        """What `run.py` takes to choose it."""
        chosen = [*NETWORKS[self.network].overrides, f"pattern={self.pattern}", f"seed={self.seed}"]
        if self.pattern == "dense":
            return chosen
        settings = (f"pattern.aggregate={self.aggregate}", f"sparsity={self.sparsity:g}")
        return [*chosen, *settings, *ALLOCATIONS[self.allocation]]


def all_points(
    network: str,
    *,
    patterns: Sequence[str] = tuple(VARIANTS),
    sparsities: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[Point]:
    """The dense network of each seed and all that is pruned from it; None = as `NETWORKS` says."""
    for seed in NETWORKS[network].seeds if seeds is None else seeds:
        yield Point(network, "dense", 0.0, "", "", seed)
        for sparsity in NETWORKS[network].sparsities if sparsities is None else sparsities:
            for pattern in patterns:
                for allocation, aggregate in VARIANTS[pattern]:
                    yield Point(network, pattern, sparsity, allocation, aggregate, seed)


@dataclass(frozen=True)
class Result:
    """What one point gave.

    Args:
        metric_name: of val_metric (the held-out part of train, for choices) and test_metric, both fractions.
        val_samples, test_samples: how many each is over.
        layers: that may be pruned; layers_below: those of them with a density below `LOW`.
        seconds: of pruning, training (the dense one where it was not finished) and evaluation.
    """

    metric_name: str
    val_metric: float
    test_metric: float
    val_samples: int
    test_samples: int
    sparsity_achieved: float
    layers: int
    layers_below: int
    least_density: float
    seconds: float
    device: str
    torch: str
    commit: str | None
    date: str


def experiment_of(point: Point, overrides: Sequence[str]) -> Any:
    """The experiment that `run.py` would have for this point."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    import sparsefront.config  # noqa: F401  registers the root's schema and resolvers
    from sparsefront.validate import validate

    quiet = ["kernel=none", "logger=none", "trainer.progress_bar=false", "trainer.checkpoint=false"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = [*point.overrides, *quiet, "measure.batch_size=256", *overrides]
        config = compose("config", overrides=chosen, return_hydra_config=True)
    with open_dict(config):
        config.hydra.runtime.output_dir = config.cache_dir  # the stages that run here write nothing into it
        HydraConfig.instance().set_config(config)
        del config["hydra"]
    return validate(config)


def finish(point: Point, overrides: Sequence[str]) -> Result:
    """Train a point, unless its stages are finished, and evaluate it on both splits.

    Args:
        overrides: of run.py, the same for all points of a network.
    """
    from sparsefront.artifacts.store import ArtifactStore
    from sparsefront.measure.accuracy import evaluate
    from sparsefront.measure.sparsity import achieved_sparsity
    from sparsefront.provenance import provenance
    from sparsefront.pruning.mask_file import MASKS, load_masks
    from sparsefront.stages import dense, prune, recover
    from sparsefront.stages.keys import stage_keys
    from sparsefront.stages.network import load_net, make_task, open_data
    from sparsefront.training.epoch_weights import WEIGHTS

    start = time.perf_counter()
    experiment = experiment_of(point, overrides)
    store = ArtifactStore(experiment.cache_dir, runnable=experiment.stages, reuse=True)
    keys = stage_keys(experiment)
    trained, masks = dense.run(experiment, store, keys.dense, []), {}
    if experiment.pattern.prunes:
        pruned = prune.run(experiment, store, keys.prune, trained)
        trained = recover.run(experiment, store, keys.recover, trained, pruned, [])
        masks = load_masks(trained.path / MASKS)
    net = load_net(experiment, trained.path / WEIGHTS)
    achieved = achieved_sparsity(net, masks, experiment.model.prunable(net))
    densities = [1 - sparsity for sparsity in achieved.layers.values()]
    settings, task = experiment.measure, make_task(experiment, net)
    data = open_data(experiment, batch_size=settings.batch_size)
    where = {"device": settings.torch_device, "dtype": settings.torch_dtype, "limit": settings.evaluate_limit}
    val, test = (evaluate(task, net, data, split, **where) for split in ("val", "test"))
    facts = provenance(settings.torch_device)
    return Result(
        metric_name=task.metric_name,
        val_metric=val.metrics[task.metric_name],
        test_metric=test.metrics[task.metric_name],
        val_samples=val.samples,
        test_samples=test.samples,
        sparsity_achieved=achieved.sparsity_achieved,
        layers=len(densities),
        layers_below=sum(density < LOW for density in densities),
        least_density=min(densities),
        seconds=time.perf_counter() - start,
        device=facts.gpu or "cpu",
        torch=facts.torch_version,
        commit=facts.commit,
        date=datetime.now(UTC).date().isoformat(),
    )


def append_row(path: Path, point: Point, result: Result) -> None:
    """Add one line; the first makes the file."""
    append_line(path, asdict(point) | asdict(result))


def point_of(row: dict[str, str]) -> Point:
    """The point that a line is about."""
    kinds = {"sparsity": float, "seed": int}
    return Point(**{field.name: kinds.get(field.name, str)(row[field.name]) for field in fields(Point)})
