"""What every network of a run is measured with: the same data, inputs, device and dtype."""

from dataclasses import dataclass, replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.experiment import Experiment
from sparsefront.gpu_sharing.access import sharing
from sparsefront.measure.accuracy import Evaluation, evaluate
from sparsefront.measure.inputs import timed_inputs
from sparsefront.measure.settings import DTYPES
from sparsefront.stages.network import make_task, open_data
from sparsefront.stages.split_check import require_rows_and_classes
from sparsefront.tasks.base import Task


@dataclass(frozen=True)
class Bench:
    """One for all networks of a run; `inputs` are the keyword arguments of a timed forward, on `device`."""

    experiment: Experiment
    data: pl.LightningDataModule
    task: Task
    inputs: dict[str, Tensor]
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, experiment: Experiment, net: nn.Module) -> "Bench":
        """The bench of an experiment; `net` only tells the task what its outputs look like.

        Raises:
            InvalidSetting: what is evaluated of val or test is of one class.
        """
        settings = experiment.measure
        data = open_data(experiment, batch_size=settings.batch_sizes[0])
        for split in ("val", "test"):
            require_rows_and_classes(experiment, data, split)
        bench = cls(experiment, data, make_task(experiment, net), {}, settings.torch_device, settings.torch_dtype)
        return bench.at(settings.batch_sizes[0], settings.sequence_lengths[0])

    def at(self, batch_size: int, sequence_length: int | None) -> "Bench":
        """The same bench with timed inputs of this size; a length of None is the dataset's."""
        inputs = timed_inputs(
            self.task,
            self.data.test_dataloader(),
            batch_size=batch_size,
            sequence_length=sequence_length or self.experiment.dataset.info.sequence_length,
            device=self.device,
            dtype=self.dtype,
        )
        return replace(self, inputs=inputs)

    @property
    def batch_size(self) -> int:
        """Rows of the timed inputs."""
        return len(next(iter(self.inputs.values())))

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a row of the timed inputs; None for images."""
        tokens = self.inputs.get("input_ids")
        return None if tokens is None else tokens.shape[1]

    def ready(self, net: nn.Module) -> nn.Module:
        """The network as it is measured: on the device, in the dtype, in eval mode."""
        with sharing(self.device):
            return net.to(device=self.device, dtype=self.dtype).eval()

    def quality(self, net: nn.Module, what: str, split: str = "test") -> Evaluation:
        """The task's metrics, as fractions, with their standard errors.

        Args:
            split: test, which is reported, or val, by which choices are made.
        """
        return evaluate(
            self.task,
            net,
            self.data,
            split,
            device=self.device,
            dtype=self.dtype,
            limit=self.experiment.measure.evaluate_limit,
            description=f"evaluate {what}",
        )

    def evaluation_conditions(self) -> dict[str, Any]:
        """What the metrics were taken with, as fields of the result."""
        dtype = next(name for name, dtype in DTYPES.items() if dtype == self.dtype)
        return {"batch_size": self.experiment.measure.batch_sizes[0], "dtype": dtype}

    def conditions(self) -> dict[str, Any]:
        """What the latencies were taken with, as fields of the result."""
        return {
            **self.evaluation_conditions(),
            "latency_device": self.device.type,
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "layout": "row_major",
            **self.experiment.measure.protocol,
        }
