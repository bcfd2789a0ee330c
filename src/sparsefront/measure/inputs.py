"""The batch that is timed: real samples, brought to the size that was asked for."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sparsefront.measure.accuracy import cast_inputs

TOKENS = ("input_ids", "attention_mask", "token_type_ids")  # [batch, tokens]


def timed_inputs(
    task: Any,
    batches: Iterable[dict[str, Tensor]],
    *,
    batch_size: int,
    sequence_length: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Keyword arguments of the net for one timed forward.

    Samples are taken from the loader in order and repeated where there are too few; tokens are cut, or repeated from
    the start of the sample, to `sequence_length`. Real values matter: a GPU multiplies zeros faster than data.

    Args:
        task: gives net_inputs(batch).
        batches: a loader, or any iterable of batches; batches of different token counts are brought to the first's.
        sequence_length: tokens per sample; None = as the loader gives them. Ignored for images.
    Returns:
        name -> tensor with `batch_size` rows on `device`, floating ones in `dtype`.
    Raises:
        ValueError: no samples.
    """
    collected: list[dict[str, Tensor]] = []
    rows = 0
    for batch in batches:
        inputs = dict(task.net_inputs(batch))
        length = sequence_length or _tokens((collected or [inputs])[0])
        collected.append({name: _to_length(name, value, length) for name, value in inputs.items()})
        rows += len(next(iter(inputs.values())))
        if rows >= batch_size:
            break
    if rows == 0:
        raise ValueError("there is no sample to time the network on")
    rotation = torch.arange(batch_size) % rows
    together = {name: torch.cat([part[name] for part in collected])[rotation] for name in collected[0]}
    return cast_inputs(together, device=device, dtype=dtype)


def _tokens(inputs: dict[str, Tensor]) -> int | None:
    return next((inputs[name].shape[1] for name in TOKENS if name in inputs), None)


def _to_length(name: str, value: Tensor, length: int | None) -> Tensor:
    if name not in TOKENS or length is None:
        return value
    return value[:, torch.arange(length) % value.shape[1]]
