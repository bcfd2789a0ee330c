"""The task's metric of one network on one split, in the dtype and on the device that are measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

if TYPE_CHECKING:
    from sparsefront.tasks.base import Evaluator

SPLITS = {"val": "validate", "test": "test"}  # ours -> Lightning's name of the stage


@dataclass(frozen=True)
class Evaluation:
    """What a network scored.

    Args:
        metrics: metric -> fraction in [0, 1]; logits reach the metric in fp32, on the CPU.
        standard_errors: of the same metrics, in the same unit: what the split being a sample does to them.
        samples: inputs, or questions, that were judged.
    """

    metrics: dict[str, float]
    standard_errors: dict[str, float]
    samples: int


def evaluate(task: Any, net: nn.Module, data: Any, split: str, **options: Any) -> dict[str, float]:
    """The metrics alone, of `evaluated` with the same arguments; standard errors are not computed."""
    return evaluated(task, net, data, split, **options).compute()


def evaluation(task: Any, net: nn.Module, data: Any, split: str, **options: Any) -> Evaluation:
    """Metrics, standard errors and number of samples, of `evaluated` with the same arguments."""
    evaluator = evaluated(task, net, data, split, **options)
    return Evaluation(evaluator.compute(), evaluator.standard_errors(), evaluator.samples)


def evaluated(
    task: Any,
    net: nn.Module,
    data: Any,
    split: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    limit: int | None = None,
    description: str = "evaluate",
) -> "Evaluator":
    """Run a network over a split; returns the task's evaluator, which has seen all outputs.

    Args:
        task: gives net_inputs(batch) and evaluator(data, split); its own network is not used.
        net: dense, masked or swapped; left in eval mode on `device`, in `dtype`.
        data: the data module; set up here.
        split: val (held-out part of train, for choices) or test (for reporting).
        limit: stop after the batch in which this many samples have been seen; None = the whole split.
        description: label of the progress bar.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: is one of {', '.join(SPLITS)}")
    net.to(device=device, dtype=dtype).eval()
    data.prepare_data()
    data.setup(SPLITS[split])
    loader = data.val_dataloader() if split == "val" else data.test_dataloader()
    evaluator = task.evaluator(data, split)
    with torch.inference_mode():
        for batch in _first_samples(tqdm(loader, desc=description, leave=False), limit):
            inputs = cast_inputs(task.net_inputs(batch), device=device, dtype=dtype)
            evaluator.update(as_float(net(**inputs)), batch)
    return evaluator


def cast_inputs(inputs: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs on the device; floating ones in the net's dtype, ids and masks as they are."""
    return {
        name: value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }


def as_float(output: Any) -> Any:
    """The same output with floating tensors in fp32, all on the CPU: a tensor, a Hugging Face output or a sequence."""
    if isinstance(output, Tensor):
        return output.to(device="cpu", dtype=torch.float32 if output.is_floating_point() else output.dtype)
    if isinstance(output, Mapping):
        return type(output)(**{name: as_float(value) for name, value in output.items()})
    if isinstance(output, list | tuple):
        return type(output)(as_float(value) for value in output)
    return output


def _first_samples(batches: tqdm, limit: int | None) -> Iterator[dict[str, Tensor]]:
    seen = 0
    for batch in batches:
        yield batch
        seen += len(next(iter(batch.values())))
        if limit is not None and seen >= limit:
            batches.close()
            return
