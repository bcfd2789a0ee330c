"""Evaluate the task's metric of one network on one split, in the dtype and on the device that are measured."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sparsefront.gpu import share_gpu, yield_gpu
from sparsefront.models.unpadded import is_unpadded
from sparsefront.progress import EVALUATION, bar, track_time
from sparsefront.tasks.outcomes import Outcomes
from sparsefront.training.graphs import capture_passes

SPLITS = {"val": "validate", "test": "test"}  # our name -> Lightning's stage


@dataclass(frozen=True)
class Evaluation:
    """What a network scored.

    Args:
        metrics: metric -> fraction in [0, 1], or a perplexity; logits reach the metric in fp32.
        standard_errors: of the same metrics, in the same unit; they cover the sampling of the split alone.
        samples: number of inputs, or questions, evaluated.
        outcomes: each sample's part of the tracked metric; None where that was not kept.
        signature: variant of the tracked metric, where there are several.
        texts: what a network wrote, if its task is to write.
    """

    metrics: dict[str, float]
    standard_errors: dict[str, float]
    samples: int
    outcomes: Outcomes | None = None
    signature: str | None = None
    texts: list[str] | None = None


def evaluate(
    task: Any,
    net: nn.Module,
    data: Any,
    split: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    limit: int | None = None,
    description: str = "evaluate",
    graphs: bool = True,
) -> Evaluation:
    """Evaluate a network over a split.

    Args:
        task: provides net_inputs(batch), predict(net, inputs), evaluator(data, split) and metric_name; its own network is unused.
        net: dense, masked or sparse; left in eval mode on `device`, in `dtype`.
        data: the data module; set up here.
        split: val (held-out part of train, for choices) or test (for reporting).
        limit: stop after the batch that reaches this many samples; None = the whole split.
        description: label of the progress bar.
        graphs: on a GPU, replay a CUDA graph for each shape of a batch that comes again; not without padding, where a shape has
            many numbers of tokens.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: is one of {', '.join(SPLITS)}")
    data.prepare_data()
    data.setup(SPLITS[split])
    loader = data.val_dataloader() if split == "val" else data.test_dataloader()
    evaluator = task.evaluator(data, split)
    reduces = getattr(evaluator, "reduces_outputs", False)
    pending: list[tuple[Any, dict[str, Tensor]]] = []  # what the device may still compute while the next batch is made

    def update(output: Any, batch: dict[str, Tensor]) -> None:
        evaluator.update(output if reduces else as_float(output), batch)

    with track_time(EVALUATION), share_gpu(device), torch.inference_mode():
        net.to(device=device, dtype=dtype).eval()
        batches = first_samples(loader, limit)
        with capture_passes(net, enabled=graphs and _captures_on(device) and not is_unpadded(net)):
            for batch in bar(batches, description=description, total=_batches(loader, limit), unit="batch"):
                yield_gpu(device)
                inputs = cast_inputs(task.net_inputs(batch), device=device, dtype=dtype)
                pending.append((task.predict(net, inputs), batch))
                if reduces or len(pending) > 1:
                    update(*pending.pop(0))
            for last in pending:
                update(*last)
    outcomes = evaluator.outcomes(task.metric_name)
    said = {name: getattr(evaluator, name, None) for name in ("signature", "texts")}
    return Evaluation(evaluator.compute(), evaluator.standard_errors(), evaluator.samples, outcomes, **said)


def _captures_on(device: torch.device) -> bool:
    return device.type == "cuda"


def cast_inputs(inputs: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs on the device; floating ones in the net's dtype, ids and masks in their own."""
    return {
        name: value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }


def as_float(output: Any) -> Any:
    """Move an output (tensor, Hugging Face output or sequence) to the CPU, floating tensors in fp32."""
    if isinstance(output, Tensor):
        return output.to(device="cpu", dtype=torch.float32 if output.is_floating_point() else output.dtype)
    if isinstance(output, Mapping):
        return type(output)(**{name: as_float(value) for name, value in output.items()})
    if isinstance(output, list | tuple):
        return type(output)(as_float(value) for value in output)
    return output


def _batches(loader: DataLoader, limit: int | None) -> int:
    """Number of batches that `first_samples` yields; an upper bound where their sizes differ."""
    size = getattr(loader, "batch_size", None)
    return len(loader) if limit is None or size is None else min(len(loader), math.ceil(limit / size))


def first_samples(batches: DataLoader, limit: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield batches until `limit` samples were seen; None = all."""
    seen = 0
    for batch in batches:
        yield batch
        seen += len(next(iter(batch.values())))
        if limit is not None and seen >= limit:
            return
