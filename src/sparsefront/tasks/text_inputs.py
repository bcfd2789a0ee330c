"""What BERT-like networks take of a batch."""

from sparsefront.tasks.base import Batch

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def text_inputs(batch: Batch) -> Batch:
    """The three inputs, int64 [B, length], by Hugging Face's names."""
    return {name: batch[name] for name in NAMES}
