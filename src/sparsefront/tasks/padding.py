"""Attention masks as a BERT takes them without looking inside, for which it would wait for the GPU in every training step."""

from torch import Tensor, nn

MASK = "attention_mask"


def looks_into_masks(net: nn.Module) -> bool:
    """Whether the network is a BERT of transformers with PyTorch's attention: it leaves out a mask [B, length] that masks
    nothing, which it finds out by reading it.
    """
    config = getattr(net, "config", None)
    kind, attention = getattr(config, "model_type", None), getattr(config, "_attn_implementation", None)
    return kind == "bert" and attention == "sdpa" and not config.is_decoder


def without_full_mask(batch: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """A batch that is still on the CPU, without `attention_mask` where that masks nothing; of other networks as it is."""
    if MASK not in batch or not looks_into_masks(net) or not batch[MASK].all():
        return batch
    return {name: value for name, value in batch.items() if name != MASK}


def with_square_mask(inputs: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Inputs with the mask as bool [B, 1, length, length], True = attend, equal to what transformers makes of [B, length]; of
    other networks as they are.
    """
    if MASK not in inputs or not looks_into_masks(net):
        return inputs
    mask = inputs[MASK]
    return inputs | {MASK: mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1).contiguous()}
