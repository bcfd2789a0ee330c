"""The evaluation context shared by all networks of a run: data, inputs, device and dtype."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import share_gpu
from sparsefront.measure.accuracy import Evaluation, evaluate, first_samples
from sparsefront.measure.problems import SameSize, batches_by_size, make_inputs, tokens_of
from sparsefront.measure.settings import DTYPES
from sparsefront.models.unpadded import UNPADDED, fill_rows, unpad
from sparsefront.stages.network import make_task, open_data, require_rows_and_classes
from sparsefront.tasks.base import Task
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvalContext:
    """Evaluation settings shared by all networks of a run. `inputs` are the keyword arguments of a timed forward, on `device`;
    for text generation, those of a one-token step after `prompt`.
    """

    experiment: Experiment
    data: pl.LightningDataModule
    task: Task
    inputs: dict[str, Tensor]
    device: torch.device
    dtype: torch.dtype
    prompt: Tensor | None = None

    @classmethod
    def of(cls, experiment: Experiment, net: nn.Module) -> "EvalContext":
        """Create the context of an experiment; `net` only tells the task what its outputs look like.

        Raises:
            InvalidSetting: the evaluated part of val or test has only one class.
        """
        settings = experiment.measure
        data = open_data(experiment, batch_size=settings.batch_sizes[0])
        for split in ("val", "test"):
            require_rows_and_classes(experiment, data, split)
        bench = cls(experiment, data, make_task(experiment, net), {}, settings.torch_device, settings.torch_dtype)
        return bench.at(settings.batch_sizes[0], settings.sequence_lengths[0])

    def at(self, batch_size: int, sequence_length: int | None) -> "EvalContext":
        """The same context with timed inputs of this size; a length of None is the dataset's."""
        inputs = make_inputs(
            self.task,
            self.data.test_dataloader(),
            batch_size=batch_size,
            sequence_length=sequence_length or self.experiment.dataset.info.sequence_length,
            image_size=self.experiment.measure.image_size,
            device=self.device,
            dtype=self.dtype,
        )
        inputs = fill_rows(inputs) if self.unpadded else inputs
        if self.experiment.measure.mode != "decode":
            return replace(self, inputs=inputs)
        prompt = inputs["input_ids"]
        return replace(self, inputs={"input_ids": prompt[:, :1]}, prompt=prompt)

    @property
    def called_with(self) -> dict[str, Tensor]:
        """Example inputs of `sf.swap` and `sf.benchmark`."""
        return self.inputs if self.prompt is None else {"input_ids": self.prompt}

    def of_prompts(self) -> "EvalContext":
        """The same context with prompts as timed inputs, of whole forwards."""
        measure = replace(self.experiment.measure, mode="forward", cache_length=None, dense_low=None)
        return replace(self, experiment=replace(self.experiment, measure=measure), inputs=self.called_with, prompt=None)

    def of_the_dataset(self) -> list[tuple["EvalContext", SameSize]]:
        """A context for each size of the reporting split's batches, with the batches of that size."""
        groups = batches_by_size(
            self.task,
            first_samples(self.data.test_dataloader(), self.experiment.measure.evaluate_limit),
            longest=self.experiment.dataset.info.sequence_length,
            device=self.device,
            dtype=self.dtype,
            unpadded=self.unpadded,
        )
        return [(replace(self, inputs=group.inputs), group) for group in groups]

    @property
    def unpadded(self) -> bool:
        """Whether networks run without padding."""
        return self.experiment.inference.unpadded

    @property
    def batch_size(self) -> int:
        """Number of rows of the timed inputs."""
        return len(next(iter(self.inputs.values())))

    @property
    def sequence_length(self) -> int | None:
        """Number of tokens per row of the timed inputs: of the prompt for generation, of both source and target for translation;
        None for images.
        """
        return tokens_of(self.inputs) if self.prompt is None else self.prompt.shape[1]

    def ready(self, net: nn.Module) -> nn.Module:
        """Move the network to the device and dtype of the measurement, in eval mode, and remove its padding if requested."""
        with share_gpu(self.device):
            net = net.to(device=self.device, dtype=self.dtype).eval()
        return unpad(net) if self.unpadded else net

    def quality(self, net: nn.Module, what: str, split: str = "test") -> Evaluation:
        """The task's metrics, as fractions, with their standard errors.

        Args:
            split: test, which is reported, or val, for choices.
        """
        return evaluate(
            self.task,
            self.ready(net),
            self.data,
            split,
            device=self.device,
            dtype=self.dtype,
            limit=self.experiment.measure.evaluate_limit,
            description=f"evaluate {what}",
            graphs=self.experiment.trainer.cuda_graphs is not False,
        )

    def evaluation_conditions(self) -> dict[str, Any]:
        """How the metrics were evaluated, as fields of the result."""
        dtype = next(name for name, dtype in DTYPES.items() if dtype == self.dtype)
        measure, precision = self.experiment.measure, self.experiment.precision
        held = precision.mode if precision.is_low else dtype
        return {"batch_size": measure.batch_sizes[0], "dtype": dtype, "precision": held}

    def conditions(self) -> dict[str, Any]:
        """How the latencies were measured, as fields of the result."""
        measure, generated = self.experiment.measure, {}
        if self.prompt is not None:
            generated = {"timed_mode": measure.mode, "cache_length": measure.cache_length_for(self.prompt.shape[1])}
        return {
            **self.evaluation_conditions(),
            **generated,
            "latency_device": self.device.type,
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "timed_image_size": measure.image_size,
            "layout": "row_major",
            **measure.protocol,
            **({"variants_autotuned": [UNPADDED, *measure.protocol["variants_autotuned"]]} if self.unpadded else {}),
        }


# Accuracy of a run's networks on two splits: the reported one, and the held-out part of train used for choices.

OUTCOMES, TEXTS = "outcomes.npz", "translations.*.txt"


@dataclass(frozen=True)
class SplitQuality:
    """A network's results on `test` and on the held-out part of train; None if nothing is held out."""

    test: Evaluation
    val: Evaluation | None


def evaluate_splits(bench: EvalContext, net: nn.Module, what: str) -> SplitQuality:
    """Evaluate a network on both splits.

    Args:
        what: name of the network, for the progress bar.
    """
    val = bench.quality(net, f"{what}, held out", "val") if bench.experiment.dataset.valid_fraction else None
    return SplitQuality(bench.quality(net, what), val)


def evaluate_stored(
    store: ArtifactStore, cache_key: dict[str, Any], bench: EvalContext, side: str, make_net: Callable[[], nn.Module]
) -> SplitQuality:
    """The metrics of a dense network, evaluated once for all points of a sweep.

    Args:
        side: its name in a result: dense, dense_low.
        make_net: returns it.
    """
    while (stored := store.get("dense_quality", cache_key, stage="measure")) is None:
        with store.making("dense_quality", cache_key) as new:
            name = "the dense network" + ("" if side == "dense" else " in low precision")
            log.info("measure: accuracy of %s on %s", name, bench.device.type)
            made = evaluate_splits(bench, make_net(), side)
            content = {
                split: None if quality is None else asdict(replace(quality, outcomes=None))
                for split, quality in vars(made).items()
            }
            (new.folder / "quality.json").write_text(json.dumps(content), encoding="utf-8")
            save_outcomes(new.folder / OUTCOMES, {side: made.test.outcomes})
    contents = stored.read_json("quality.json")
    quality = SplitQuality(
        **{split: None if fields is None else Evaluation(**fields) for split, fields in contents.items()}
    )
    return replace(quality, test=replace(quality.test, outcomes=load_outcomes(stored.path / OUTCOMES)[side]))


def save_all_outcomes(folder: Path, qualities: dict[str, SplitQuality]) -> None:
    """Write the per-sample outcomes of every network on the reporting split into one file, and what each wrote into its own,
    one text per line.
    """
    save_outcomes(folder / OUTCOMES, {side: quality.test.outcomes for side, quality in qualities.items()})
    for side, quality in qualities.items():
        if quality.test.texts is not None:
            lines = "".join(" ".join(text.split()) + "\n" for text in quality.test.texts)
            (folder / TEXTS.replace("*", side)).write_text(lines, encoding="utf-8")


def quality_fields(bench: EvalContext, qualities: dict[str, SplitQuality]) -> dict[str, Any]:
    """Group `quality` of the result.

    Args:
        qualities: dense, dense_low, masked or sparse -> its results.
    """
    metric = bench.task.metric_name
    extra = {
        side: {name: value for name, value in quality.test.metrics.items() if name != metric}
        for side, quality in qualities.items()
    }
    held_out = {side: quality.val for side, quality in qualities.items() if quality.val is not None}
    return {
        "metric_name": metric,
        "metric_signature": qualities["dense"].test.signature,
        **{side: quality.test.metrics[metric] for side, quality in qualities.items()},
        **{f"{side}_standard_error": quality.test.standard_errors[metric] for side, quality in qualities.items()},
        **{f"val_{side}": quality.metrics[metric] for side, quality in held_out.items()},
        **{f"val_{side}_standard_error": quality.standard_errors[metric] for side, quality in held_out.items()},
        "extra_metrics": {side: quality for side, quality in extra.items() if quality},
        "evaluate_limit": bench.experiment.measure.evaluate_limit,
        "evaluated_samples": qualities["dense"].test.samples,
        "val_evaluated_samples": held_out["dense"].samples if held_out else None,
    }
