"""What every network of a run is evaluated with: the same data, inputs, device and dtype."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import sharing
from sparsefront.measure.accuracy import Evaluation, evaluate, first_samples
from sparsefront.measure.end_to_end import latency_over_batches, speedup_of, time_size
from sparsefront.measure.execution_mode import NothingRuns
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import batches_by_size, timed_inputs
from sparsefront.measure.settings import DTYPES
from sparsefront.measure.timers import LatencySummary, summarise
from sparsefront.results.record import dataset_size_text, size_text
from sparsefront.stages.keys import StageKeys
from sparsefront.stages.network import make_task, open_data, require_rows_and_classes
from sparsefront.tasks.base import Task
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes


@dataclass(frozen=True)
class EvalContext:
    """One for all networks of a run; `inputs` are the keyword arguments of a timed forward, on `device`."""

    experiment: Experiment
    data: pl.LightningDataModule
    task: Task
    inputs: dict[str, Tensor]
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, experiment: Experiment, net: nn.Module) -> "EvalContext":
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

    def at(self, batch_size: int, sequence_length: int | None) -> "EvalContext":
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

    def of_the_dataset(self) -> list[tuple["EvalContext", int]]:
        """A bench for each size that batches of the reporting split have, as they are evaluated, and how many have it."""
        groups = batches_by_size(
            self.task,
            first_samples(self.data.test_dataloader(), self.experiment.measure.evaluate_limit),
            longest=self.experiment.dataset.info.sequence_length,
            device=self.device,
            dtype=self.dtype,
        )
        return [(replace(self, inputs=group.inputs), group.batches) for group in groups]

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
        return {"batch_size": self.experiment.measure.batch_sizes[0], "dtype": dtype, "precision": dtype}

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


# Latency at several sizes: the curve, and the batches of the evaluation set.

log = logging.getLogger(__name__)
Samples = dict[str, list[list[float]]]  # network -> milliseconds, one list per repeat
Ways = dict[str, tuple[nn.Module, Execution]]
"""dense or sparse -> the network, and the fastest way in which it ran."""
ON_THE_CURVE = (
    "batch_size",
    "sequence_length",
    "latency_dense_ms",
    "latency_dense_p20_ms",
    "latency_dense_p80_ms",
    "latency_sparse_ms",
    "latency_sparse_p20_ms",
    "latency_sparse_p80_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "dense_variant",
    "sparse_variant",
    "fused_dense_latency_ms",
    "gpu_clock_mhz",
)


def latency_curve(
    bench: EvalContext, speed_at: Callable[[EvalContext], tuple[dict[str, Any], Samples]]
) -> tuple[list[dict[str, Any]], Samples]:
    """Every size of the measurement's settings but the first: field `curve` of the result, and its samples.

    A size that the device has no memory for, or that no execution mode can run, is a point without latencies that says so.

    Args:
        bench: of the first size.
        speed_at: group `speed` at another one, with the entries `kernels` and `sparse_flops_share` where kernels run.
    """
    curve, samples = [], {}
    for at in sizes(bench.experiment)[1:]:
        size = dict(zip(("batch_size", "sequence_length"), at, strict=True))
        point, taken = _timed_size(size, lambda at=at: speed_at(bench.at(*at)))
        curve.append(point)
        samples |= {f"{side} {size_text(point)}": values for side, values in taken.items()}
    return curve, samples


def dataset_latency(bench: EvalContext, ways: Ways) -> tuple[dict[str, Any], Samples]:
    """Latency of a batch as the evaluation set has them: fields of group `speed`, and samples. Empty with `lengths=fixed`.

    The batches are those of the evaluation, in the loader's order, each padded to its own longest row rounded up to 16 tokens.
    The same size occurs many times: each (rows, tokens) is timed once, with all samples and repeats, dense and sparse in turn,
    and weighs as often as it occurs; the last, smaller batch is a size of its own. The latency is the sum over all batches by
    their number. As where a network is served, one network with one choice of kernels runs all sizes: that of the fixed size, in
    the way that was fastest there, for dense and sparse alike. Each size is compiled and recorded by itself.

    Where one size cannot be timed there is no latency, and the size says why.

    Args:
        bench: of the fixed size.
        ways: "dense", and "sparse" where kernels run -> the network, and how it ran there.
    """
    settings = bench.experiment.measure
    if settings.lengths == "fixed":
        return {}, {}

    def speed_at(inputs: dict[str, Tensor]) -> tuple[dict[str, Any], Samples]:
        taken = time_size(ways, inputs, settings)
        found: dict[str, Any] = {}
        for side, samples_ms in taken.items():
            found |= latency_fields(side, summarise(sum(samples_ms, [])))
        if "sparse" in taken:
            found |= speedup_of(taken["dense"], taken["sparse"]).to_json()
        return found, taken

    lengths, timed, samples = [], [], {}
    for point, batches in bench.of_the_dataset():
        size = {"batch_size": point.batch_size, "sequence_length": point.sequence_length}
        entry, taken = _timed_size(size, lambda point=point: speed_at(point.inputs))
        lengths.append(entry | {"batches": batches})
        timed.append((batches, taken))
        samples |= {f"{side} {dataset_size_text(entry)}": values for side, values in taken.items()}
    whole = all(taken for _, taken in timed)
    return {"dataset_lengths": lengths} | (latency_over_batches(timed) if whole else {}), samples


def latency_fields(side: str, latency: LatencySummary) -> dict[str, float]:
    """Of "dense" or "sparse", as fields of the result."""
    return {
        f"latency_{side}_ms": latency.median_ms,
        f"latency_{side}_p20_ms": latency.p20_ms,
        f"latency_{side}_p80_ms": latency.p80_ms,
    }


def _timed_size(
    size: dict[str, int | None], speed_at: Callable[[], tuple[dict[str, Any], Samples]]
) -> tuple[dict[str, Any], Samples]:
    """An entry of `curve`, or of `dataset_lengths`; without samples and latencies where it cannot be timed."""
    try:
        speed, taken = speed_at()
    except (torch.OutOfMemoryError, NothingRuns) as error:
        why = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error)
        log.warning("measure: batch %d, length %s: %s", *size.values(), why)
        return size | {"not_measured": why}, {}
    kept = (*ON_THE_CURVE, "kernels", "sparse_flops_share")
    return size | {name: speed[name] for name in kept if name in speed}, taken


def sizes(experiment: Experiment) -> list[tuple[int, int | None]]:
    """(batch size, sequence length) of all points, the result's own first; images have no length."""
    measure = experiment.measure
    lengths = (None,) if experiment.dataset.info.sequence_length is None else measure.sequence_lengths
    return [(batch_size, length) for length, batch_size in product(lengths, measure.batch_sizes)]


# Accuracy of a run's networks on both splits: the one that is reported, and the part of train by which choices are
# made.

OUTCOMES = "outcomes.npz"


@dataclass(frozen=True)
class SplitQuality:
    """What one network scored on `test`, and on the held-out part of train; None where nothing is held out."""

    test: Evaluation
    val: Evaluation | None


def evaluate_splits(bench: EvalContext, net: nn.Module, what: str) -> SplitQuality:
    """Evaluate a network.

    Args:
        what: the network, for the progress bar.
    """
    val = bench.quality(net, f"{what}, held out", "val") if bench.experiment.dataset.valid_fraction else None
    return SplitQuality(bench.quality(net, what), val)


def evaluate_dense(store: ArtifactStore, keys: StageKeys, bench: EvalContext, net: nn.Module) -> SplitQuality:
    """The dense network's metrics: evaluated once for all points of a sweep."""
    while (stored := store.get("dense_quality", keys.dense_quality, stage="measure")) is None:
        with store.making("dense_quality", keys.dense_quality) as new:
            log.info("measure: accuracy of the dense network on %s", bench.device.type)
            made = evaluate_splits(bench, net, "dense")
            content = {
                split: None if found is None else asdict(replace(found, outcomes=None))
                for split, found in vars(made).items()
            }
            (new.folder / "quality.json").write_text(json.dumps(content), encoding="utf-8")
            save_outcomes(new.folder / OUTCOMES, {"dense": made.test.outcomes})
    told = stored.read_json("quality.json")
    found = SplitQuality(**{split: None if kept is None else Evaluation(**kept) for split, kept in told.items()})
    return replace(found, test=replace(found.test, outcomes=load_outcomes(stored.path / OUTCOMES)["dense"]))


def save_all_outcomes(folder: Path, qualities: dict[str, SplitQuality]) -> None:
    """What each sample of the reporting split adds to the metric, of every network, into one file."""
    save_outcomes(folder / OUTCOMES, {side: found.test.outcomes for side, found in qualities.items()})


def quality_fields(bench: EvalContext, qualities: dict[str, SplitQuality]) -> dict[str, Any]:
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
