"""Splits that teach or test nothing: without rows, or with labels of one class, where whatever answers it scores 100 %."""

import math

import pytorch_lightning as pl
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment

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
