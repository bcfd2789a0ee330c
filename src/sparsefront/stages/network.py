"""An experiment's network, data and task, and their weights and masks on disk."""

import copy
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file
from torch import nn

from sparsefront.artifacts.content_digest import digest, file_digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.networks import first_non_finite, tensors_digest
from sparsefront.stages.keys import reseed, stage_seed
from sparsefront.tasks.base import Optimizes, Task
from sparsefront.tasks.classification import ImageClassification, SequenceClassification
from sparsefront.tasks.extractive_qa import ExtractiveQA
from sparsefront.training.recipe import Optimization

# Tasks by the name that data sets and models call them.

TASKS: dict[str, type[Task]] = {task.kind: task for task in (ImageClassification, SequenceClassification, ExtractiveQA)}


def build_task(kind: str, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> Task:
    """The task that a data set poses, around a network.

    Args:
        kind: `DataInfo.kind`.
        dataset: the data set's settings.
        optimization: needed to train, not to evaluate.
    Raises:
        ValueError: no such kind; lists those there are.
    """
    if kind not in TASKS:
        raise ValueError(f"task {kind}: there are {', '.join(TASKS)}")
    return TASKS[kind].for_dataset(net, dataset, optimization)


# Where a training keeps what a later one resumes from, apart for all that it may have begun with.


def unfinished_from(store: ArtifactStore, kind: str, cache_key: dict[str, Any], *files: Path) -> Path:
    """A folder of the stage's own, by the bytes of the files that its training begins with.

    Stages that were removed or damaged are made again under the same key, and may hold other bits: on a GPU, on another
    processor. What was trained from those before is then left alone.
    """
    return store.unfinished(kind, cache_key) / digest([file_digest(file) for file in files])


# Splits that teach or test nothing: without rows, or with labels of one class, where whatever answers it scores 100
# %.

KINDS = ("image_classification", "sequence_classification")


def require_rows_and_classes(experiment: Experiment, data: pl.LightningDataModule, split: str) -> None:
    """A split must hold rows, of at least two classes; of `val` and `test`, the part that is evaluated.

    Regression, and data whose parts tell no `labels`, is left alone. So is a `val` of one class: classes are held out in
    their proportions, so it is only too small for a second one.

    Args:
        data: its `part(split)` is read.
        split: train, val or test.
    Raises:
        InvalidSetting: no rows, other than of a `val` into which nothing is to be held out; one class, with its number and how
            many rows there are.
    """
    if not hasattr(data, "part"):
        return
    info, part = experiment.dataset.info, data.part(split)
    if len(part) == 0 and (split != "val" or experiment.dataset.valid_fraction):
        remedy = "; dataset.valid_fraction=0 holds nothing out" if split == "val" else ""
        raise InvalidSetting(*_source(experiment), f"{split} holds no rows{remedy}")
    labels = getattr(part, "labels", None)
    if info.kind not in KINDS or info.num_classes < 2 or labels is None or len(labels) == 0:
        return
    labels = torch.as_tensor(labels)
    if len(classes := labels.unique()) < 2:
        if split == "val":
            return
        alone = _alone(int(classes[0]), f"{split} holds", len(labels), info.num_classes)
        raise InvalidSetting(*_source(experiment), alone)
    limit = experiment.measure.evaluate_limit
    if split != "train" and limit is not None:
        batch_size = experiment.measure.batch_sizes[0]
        seen = labels[: math.ceil(limit / batch_size) * batch_size]
        if len(seen.unique()) < 2:
            alone = _alone(int(seen[0]), f"what is evaluated of {split} holds", len(seen), info.num_classes)
            raise InvalidSetting("measure.evaluate_limit", limit, f"{alone}; raise it, or null for the whole split")


def _source(experiment: Experiment) -> tuple[str, str]:
    """Key and value of the setting that says where the rows come from."""
    path = getattr(experiment.dataset, "path", None)
    return ("dataset", experiment.choices["dataset"]) if path is None else ("dataset.path", path)


def _alone(label: int, what: str, rows: int, classes: int) -> str:
    return f"{what} 1 of {classes} classes, number {label}, in all of its {rows} rows: a constant answer scores 100 %"


def open_data(experiment: Experiment, *, seed: int = 0, batch_size: int | None = None) -> pl.LightningDataModule:
    """A fresh data module, ready to give loaders.

    Args:
        seed: of the order and the augmentations of train.
        batch_size: null = the recipe's.
    """
    tokenizer = getattr(experiment.model, "tokenizer", None)
    with keys_of("dataset"):
        return experiment.dataset.data_module(
            batch_size=batch_size or experiment.recipe.batch_size,
            seed=seed,
            cache_dir=experiment.cache_dir / "data",
            tokenizer_from=None if tokenizer is None else keys_of("model")(tokenizer),
        )


@lru_cache(maxsize=1)
def _initial_net(experiment: Experiment) -> nn.Module:
    """Read or drawn once per run; never handed out itself."""
    reseed(stage_seed(experiment.seed, "initial weights"))
    try:
        net = experiment.model.build(experiment.dataset.info)
    except InvalidSetting as error:
        raise error.within("model") from error
    if (found := first_non_finite(dict(net.named_parameters()))) is not None:
        allowed = f"cannot be used: its initial {found.name} holds {found.counts} values"
        raise InvalidSetting("model", experiment.choices["model"], allowed)
    return net


def build_net(experiment: Experiment) -> nn.Module:
    """The network with its pretrained or seeded random weights, fp32, on the CPU."""
    return copy.deepcopy(_initial_net(experiment))


def load_net(experiment: Experiment, weights: Path) -> nn.Module:
    """The network with the weights that a stage stored."""
    net = build_net(experiment)
    net.load_state_dict(load_file(weights))
    return net


def make_task(experiment: Experiment, net: nn.Module, optimization: Optimization | None = None) -> Task:
    return build_task(experiment.dataset.info.kind, net, experiment.dataset, optimization)


def device_of(experiment: Experiment) -> torch.device:
    """Where scores and masks are made."""
    return torch.device(experiment.trainer.device)


def weights_digest(net: nn.Module) -> str:
    """`tensors_digest` of the state dict."""
    return tensors_digest(net.state_dict())
