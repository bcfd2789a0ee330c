"""Attention masks as a BERT takes them without looking inside, for which it would wait for the GPU in every training step."""

from torch import Tensor, nn


def looks_into_masks(net: nn.Module) -> bool:
    """Whether the network is a BERT of transformers with PyTorch's attention: it leaves out a mask [B, length] that masks
    nothing, which it finds out by reading it.
    """
    config = getattr(net, "config", None)
    kind, attention = getattr(config, "model_type", None), getattr(config, "_attn_implementation", None)
    return kind == "bert" and attention == "sdpa" and not config.is_decoder


def without_full_mask(batch: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """A batch that is still on the CPU, without `attention_mask` where that masks nothing; of other networks as it is."""
    if "attention_mask" not in batch or not looks_into_masks(net) or not batch["attention_mask"].all():
        return batch
    return {name: value for name, value in batch.items() if name != "attention_mask"}


def square_mask(mask: Tensor) -> Tensor:
    """Bool [B, 1, length, length], True = attend, from [B, length]; equal to what transformers makes of it."""
    return mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1).contiguous()
