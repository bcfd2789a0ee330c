"""What BERT-like networks take of a batch."""

import inspect
from functools import cache

from torch import nn

from sparsefront.tasks.base import Batch

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def text_inputs(batch: Batch, net: nn.Module) -> Batch:
    """Of the three inputs, int64 [B, length], by Hugging Face's names, those that the network's forward takes."""
    return {name: batch[name] for name in _taken(type(net))}


@cache
def _taken(network: type[nn.Module]) -> tuple[str, ...]:
    parameters = inspect.signature(network.forward).parameters
    named = tuple(name for name in NAMES if name in parameters)
    return named or NAMES  # a network that names none of them hands on whatever it is given
