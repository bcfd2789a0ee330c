"""Build an experiment's network, data and task, and load stored weights and masks."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler

from sparsefront import distributed
from sparsefront.artifacts.content_digest import digest, file_digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.data.base import SPLIT_SEED
from sparsefront.data.split_data import NoRows, SplitData
from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.networks import first_non_finite, load_state, tensors_digest
from sparsefront.stages.keys import reseed, stage_seed
from sparsefront.tasks.base import Optimizes
from sparsefront.tasks.causal_lm import CausalLM
from sparsefront.tasks.classification import ImageClassification, SequenceClassification
from sparsefront.tasks.extractive_qa import ExtractiveQA
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.tasks.plain_task import iterates_itself, similar_loader
from sparsefront.tasks.translation import Translation
from sparsefront.training.recipe import Optimization

TASKS: dict[str, type[LightningTask]] = {
    task.kind: task for task in (ImageClassification, SequenceClassification, ExtractiveQA, CausalLM, Translation)
}


def build_task(kind: str, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> LightningTask:
    """Build the task of a data set around a network.

    Args:
        kind: `DataInfo.kind`.
        dataset: the data set's settings.
        optimization: required for training, not for evaluation.
    Raises:
        ValueError: no such kind; lists the known ones.
    """
    if kind not in TASKS:
        raise ValueError(f"task {kind}: there are {', '.join(TASKS)}")
    return TASKS[kind].for_dataset(net, dataset, optimization)


def find_unfinished(store: ArtifactStore, kind: str, cache_key: dict[str, Any], *files: Path) -> Path:
    """A folder for the stage's unfinished training, specific to the contents of the files it starts from.

    Stages that were removed or damaged are recomputed under the same key and may differ in bits (on a GPU or another
    processor). Trainings that started from the earlier ones are then not resumed.
    """
    return store.locate_unfinished(kind, cache_key) / digest([file_digest(file) for file in files])


# Splits that are useless: no rows, or labels of a single class, for which any constant answer scores 100 %.

KINDS = ("image_classification", "sequence_classification")


def require_rows_and_classes(experiment: Experiment, data: pl.LightningDataModule, split: str) -> None:
    """Check that a split has rows and at least two classes; of `val` and `test`, the evaluated part.

    Regression and data without `labels` are not checked, nor is a `val` with one class: stratified hold-out means it is only
    too small for a second one.

    Args:
        data: its `part(split)` is read.
        split: train, val or test.
    Raises:
        InvalidSetting: no rows, except in a `val` without hold-out; or a single class (gives its index and the number of
            rows).
    """
    if isinstance(data, PreparedData):
        data.require_fitting(split)
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
    classes = labels.unique()
    if len(classes) < 2:
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
    """Key and value of the setting that names the source of the rows."""
    path = getattr(experiment.dataset, "path", None)
    return ("dataset", experiment.choices["dataset"]) if path is None else ("dataset.path", path)


def _alone(label: int, what: str, rows: int, classes: int) -> str:
    return f"{what} 1 of {classes} classes, number {label}, in all of its {rows} rows: a constant answer scores 100 %"


def open_data(
    experiment: Experiment, *, seed: int = 0, batch_size: int | None = None, unlabeled: bool = False
) -> pl.LightningDataModule:
    """Create a data module that is set up.

    Args:
        seed: of the order and augmentations of train.
        batch_size: None = the recipe's.
        unlabeled: include rows without a label, if the data set adds some.
    Raises:
        InvalidSetting: the data set does not return a data module.
    """
    tokenizer = getattr(experiment.model, "tokenizer", None)
    with keys_of("dataset"):
        dataset = experiment.dataset if unlabeled else experiment.dataset.drop_unlabeled()
        module = dataset.data_module(
            batch_size=batch_size or experiment.recipe.batch_size,
            seed=seed,
            cache_dir=experiment.cache_dir / "data",
            tokenizer_from=None if tokenizer is None else keys_of("model")(tokenizer),
        )
    if not isinstance(module, SplitData):
        return PreparedData(module, experiment, seed)
    module.evaluate_limit = experiment.measure.evaluate_limit
    return module


_STEPS = {"fit": ("fit",), "validate": ("fit", "validate"), "test": ("test",), None: ("fit", "validate", "test")}
_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class PreparedData(pl.LightningDataModule):
    """Wraps a user's data module: set up in advance, batches by name, and a seeded order.

    `prepare_data` and `setup` are called once each, as by a Trainer, with the same random numbers in every run and stage, so
    a `random_split` holds out the same rows. Each call of a loader method returns a new loader that starts from the same
    order.

    Args:
        module: the user's data module.
        experiment: the experiment that uses it.
        seed: of the order of train, if its loader has no generator.
    Raises:
        InvalidSetting: not a data module, or one with hooks that only a Trainer's own loop would call.
    """

    def __init__(self, module: pl.LightningDataModule, experiment: Experiment, seed: int) -> None:
        super().__init__()
        self._experiment, self._seed, self._done = experiment, seed, set[str]()
        if not isinstance(module, pl.LightningDataModule):
            raise self._unusable(f"gives a LightningDataModule as its data_module, and not {type(module).__name__}")
        self.module = module
        for hook in _HOOKS:
            if _defines(module, hook):
                raise self._unusable(f"defines {hook}, which evaluation never calls: move it to collate_fn or the rows")

    def __getattr__(self, name: str) -> Any:
        """Forward what a task's evaluator reads, such as rows."""
        if name == "module":  # not set yet while the object is copied
            raise AttributeError(name)
        return getattr(self.module, name)

    def prepare_data(self) -> None:
        """Includes `setup`, on the first rank before the others."""

    def setup(self, stage: str | None = None) -> None:
        missing = [step for step in ("prepare", *_STEPS[stage]) if step not in self._done]
        if not missing:
            return
        self._done.update(missing)
        with isolate_rng():
            for step in missing:
                reseed(SPLIT_SEED)
                if step != "prepare":
                    self.module.setup(step)
                    continue
                for first in (True, False):
                    if first == (distributed.rank() == 0):
                        self.module.prepare_data()
                    distributed.all_gather(None)

    def state_dict(self) -> dict[str, Any]:
        """The user's state, which checkpoints contain for resumed runs."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module.load_state_dict(state_dict)

    def train_dataloader(self) -> DataLoader:
        self.setup("fit")
        return self._name_batches("train", self.module.train_dataloader(), self._seed)

    def val_dataloader(self) -> DataLoader:
        self.setup("validate")
        if not _defines(self.module, "val_dataloader"):
            if self._experiment.dataset.valid_fraction:
                raise self._unusable(
                    "has no val_dataloader: define it, or choose nothing with dataset.valid_fraction=0"
                )
            return DataLoader(NoRows())
        return self._name_batches("val", self.module.val_dataloader(), SPLIT_SEED)

    def test_dataloader(self) -> DataLoader:
        self.setup("test")
        if not _defines(self.module, "test_dataloader"):
            raise self._unusable("has no test_dataloader, on which results are reported")
        return self._name_batches("test", self.module.test_dataloader(), SPLIT_SEED)

    def require_fitting(self, split: str) -> None:
        """Check the first batch in this process, where an error is one line; in a worker it would be a traceback.

        Raises:
            InvalidSetting: see `_name_batches`; or labels exceed the classes of `info`.
        """
        loader: DataLoader = getattr(self, f"{split}_dataloader")()
        if len(loader) == 0:
            return
        with isolate_rng():
            rows, data = next(iter(loader.batch_sampler)), loader.dataset
            fetched = data.__getitems__(rows) if hasattr(data, "__getitems__") else [data[row] for row in rows]
            batch = loader.collate_fn(fetched)
        info, labels = self._experiment.dataset.info, batch.get("labels")
        if info.kind not in KINDS or info.num_classes < 2:
            return
        if labels.ndim != 1 or labels.is_floating_point():
            form = f"{str(labels.dtype).removeprefix('torch.')} {list(labels.shape)}"
            raise self._unusable(f"{split} gives labels of {form}: a class number per row is needed")
        if labels.min() < 0 or labels.max() >= info.num_classes:
            label = f"class {int(labels.min() if labels.min() < 0 else labels.max())}"
            raise self._unusable(f"{split} has labels of {label}, and info names {info.num_classes} classes from 0")

    def _name_batches(self, split: str, given: Any, seed: int) -> DataLoader:
        """The user's loader with named batches and one order for all calls, so that outcomes of networks can be paired.

        Raises:
            InvalidSetting: not a single DataLoader over rows with a length, no batches, or different rows per rank.
        """
        if not isinstance(given, DataLoader) or isinstance(given.dataset, IterableDataset):
            what = "an IterableDataset" if isinstance(given, DataLoader) else type(given).__name__
            raise self._unusable(f"gives {what} for {split}: one DataLoader over a dataset with a length is needed")
        if iterates_itself(given):
            raise self._unusable(
                f"gives {type(given).__name__} for {split}, whose own iteration a run cannot repeat: "
                "one DataLoader is needed; change batches in its collate_fn"
            )
        try:
            count = len(given)
        except TypeError:  # batch sampler without a length
            raise self._unusable(f"gives batches of unknown number for {split}: define __len__") from None
        if count == 0:
            raise self._unusable(f"{split} holds no batch")
        generator = torch.Generator().manual_seed(seed if given.generator is None else given.generator.initial_seed())
        collate, batches = given.collate_fn, given.batch_sampler
        if batches is None:  # the rows are already batches
            collate, batches = _Only(collate), BatchSampler(given.sampler, 1, drop_last=False)
        samplers = [batches, getattr(batches, "sampler", None)]
        if any(isinstance(sampler, DistributedSampler) for sampler in samplers):
            raise self._unusable(
                f"{split} has a DistributedSampler: leave it out, batches are shared out among ranks here"
            )
        seeded = [sampler for sampler in samplers if hasattr(sampler, "generator")]
        for sampler in seeded:
            sampler.generator = generator
        if not seeded:
            batches = _Reseeded(batches, generator)
        named_collate = _Named(collate, self._experiment.dataset.info.kind, split, *_source(self._experiment))
        return similar_loader(given, batch_sampler=batches, collate_fn=named_collate, generator=generator)

    def _unusable(self, how: str) -> InvalidSetting:
        return InvalidSetting("dataset", self._experiment.choices["dataset"], how)


def _defines(module: pl.LightningDataModule, hook: str) -> bool:
    return getattr(type(module), hook) is not getattr(pl.LightningDataModule, hook)


class _Reseeded(Sampler[list[int]]):
    """Batches of a sampler that may use global generators, seeded to be the same on every rank and after a kill."""

    def __init__(self, batches: Sampler[list[int]], generator: torch.Generator) -> None:
        self.batches, self.generator = batches, generator

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # `_name_batches` has asked for it

    def __iter__(self) -> Iterator[list[int]]:
        with isolate_rng():
            reseed(int(torch.randint(2**31, (), generator=self.generator)))
            epoch = list(islice(self.batches, len(self)))
        yield from epoch


@dataclass(frozen=True, eq=False)
class _Only:
    """Unpack a batch of one row that is itself a batch."""

    collate: Callable[[Any], Any]

    def __call__(self, rows: list) -> Any:
        return self.collate(rows[0])


_NEEDED = {
    "image_classification": ("x", "labels"),
    "sequence_classification": ("labels",),
    "causal_lm": ("input_ids",),
    "translation": ("source", "source_mask", "target", "labels"),
}


@dataclass(frozen=True, eq=False)
class _Named:
    """Converts batches to dicts; holds no network, because it is sent to workers."""

    collate: Callable[[list], Any]
    kind: str
    split: str
    key: str
    value: str

    def __call__(self, rows: list) -> dict[str, torch.Tensor]:
        """Convert a pair of an image task to `x` and `labels`; mappings are not changed.

        Raises:
            InvalidSetting: another form, or no labels.
        """
        batch = self.collate(rows)
        if self.kind == "image_classification" and isinstance(batch, Sequence) and len(batch) == 2:
            batch = {"x": batch[0], "labels": batch[1]}
        needed = _NEEDED.get(self.kind, ())
        if not isinstance(batch, Mapping) or any(not isinstance(batch.get(name), torch.Tensor) for name in needed):
            pair = "pairs (images, labels), or " if self.kind == "image_classification" else ""
            expected = f"{pair}dicts of tensors" + (f" with {' and '.join(needed)}" if needed else "")
            form = f"dicts with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else _form(batch)
            raise InvalidSetting(
                self.key, self.value, f"{self.split} gives {form} as batches; {self.kind} takes {expected}"
            )
        batch = dict(batch)
        if self.kind == "image_classification" and not batch["labels"].is_floating_point():
            batch["labels"] = batch["labels"].long()
        return batch


def _form(batch: Any) -> str:
    return f"{type(batch).__name__}s of {len(batch)}" if isinstance(batch, Sequence) else f"{type(batch).__name__}s"


@lru_cache(maxsize=1)
def _initial_net(experiment: Experiment) -> nn.Module:
    """Loaded or initialized once per run; only copies are handed out."""
    reseed(stage_seed(experiment.seed, "initial weights"))
    try:
        net = experiment.model.build(experiment.dataset.info)
    except InvalidSetting as error:
        raise error.within("model") from error
    bad_tensor = first_non_finite(dict(net.named_parameters()))
    if bad_tensor is not None:
        allowed = f"cannot be used: its initial {bad_tensor.name} holds {bad_tensor.counts} values"
        raise InvalidSetting("model", experiment.choices["model"], allowed)
    return net


def build_net(experiment: Experiment) -> nn.Module:
    """The network with its pretrained or seeded random weights, fp32, on the CPU."""
    return copy.deepcopy(_initial_net(experiment))


def load_net(experiment: Experiment, weights: Path, *, shrink: Callable[[nn.Module], None] | None = None) -> nn.Module:
    """The network with the weights stored by a stage.

    Args:
        shrink: `MaskSpec.shrink`, if the network may have lost blocks or units; None: it is the dense one. Passed instead of
            imported, because dense weights do not depend on the code of pruning.
    """
    net = build_net(experiment)
    if shrink is not None:
        shrink(net)
    load_state(net, load_file(weights))
    return net


def make_task(experiment: Experiment, net: nn.Module, optimization: Optimization | None = None) -> LightningTask:
    return build_task(experiment.dataset.info.kind, net, experiment.dataset, optimization)


def device_of(experiment: Experiment) -> torch.device:
    """The device for computing scores and masks."""
    return torch.device(experiment.trainer.device)


def weights_digest(net: nn.Module) -> str:
    """`tensors_digest` of the state dict."""
    return tensors_digest(net.state_dict())
