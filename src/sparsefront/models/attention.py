"""Self-attention whose four projections are separate Linears, so that each can be pruned and swapped.

`nn.MultiheadAttention` packs query, key and value into one parameter that is no module, and in inference takes a fused
path that never calls its output projection: a sparse layer would be silently bypassed. `replace_multihead_attention`
rebuilds such modules, `split_packed_projections` does the same to a checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROJECTIONS = ("q", "k", "v")


class SelfAttention(nn.Module):
    """Multi-head softmax(Q Kᵀ / √d) V over one sequence, through PyTorch's fused attention.

    Args:
        width: features of input and output; each head has width / heads of them.
        dropout: on the attention weights, in training only.
    Raises:
        ValueError: heads do not divide width.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide the width {width}")
        self.heads, self.dropout = heads, dropout
        self.q = nn.Linear(width, width, bias=bias, device=device)
        self.k = nn.Linear(width, width, bias=bias, device=device)
        self.v = nn.Linear(width, width, bias=bias, device=device)
        self.out = nn.Linear(width, width, bias=bias, device=device)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, T, width]
        q, k, v = (self._by_head(projection(x)) for projection in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, heads, T, width / heads]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class MultiheadSelfAttention(SelfAttention):
    """SelfAttention behind the calling convention of a batch-first `nn.MultiheadAttention` without weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        if key is not query or value is not query or need_weights:
            raise ValueError("only self-attention that needs no attention weights is supported")
        return super().forward(query), None


def split_multihead_attention(packed: nn.MultiheadAttention) -> MultiheadSelfAttention:
    """The same function with separate projections; parameters are copied, device and dtype stay.

    Raises:
        ValueError: the module uses an option that self-attention with separate Linears does not have.
    """
    if packed.in_proj_weight is None or packed.bias_k is not None or packed.add_zero_attn or not packed.batch_first:
        raise ValueError("only a batch-first nn.MultiheadAttention with equal widths and no added keys can be split")
    bias = packed.in_proj_bias is not None
    split = MultiheadSelfAttention(
        packed.embed_dim, packed.num_heads, bias=bias, dropout=packed.dropout, device="meta"
    )  # on meta: its own random initialization would be wasted
    for name, weight in zip(PROJECTIONS, packed.in_proj_weight.detach().chunk(3)):
        getattr(split, name).weight = nn.Parameter(weight.clone())
    if bias:
        for name, value in zip(PROJECTIONS, packed.in_proj_bias.detach().chunk(3)):
            getattr(split, name).bias = nn.Parameter(value.clone())
    split.out.weight, split.out.bias = packed.out_proj.weight, packed.out_proj.bias
    return split.train(packed.training)


def replace_multihead_attention(net: nn.Module) -> list[str]:
    """Split every `nn.MultiheadAttention` below `net` in place; one shared by two parents stays shared.

    Returns:
        the names of the modules that were replaced.
    """
    split: dict[nn.Module, MultiheadSelfAttention] = {}
    replaced = []
    for parent_name, parent in list(net.named_modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.MultiheadAttention):
                if child not in split:
                    split[child] = split_multihead_attention(child)
                setattr(parent, name, split[child])
                replaced.append(f"{parent_name}.{name}".lstrip("."))
    return replaced


def split_packed_projections(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's keys with every packed attention written as q, k, v, out; what is split already stays as it is."""
    packed = tuple(key.removesuffix("in_proj_weight") for key in weights if key.endswith("in_proj_weight"))
    result = {}
    for key, tensor in weights.items():
        owner, _, kind = key.rpartition("in_proj_")
        if kind in ("weight", "bias") and owner in packed:
            result |= {f"{owner}{name}.{kind}": part for name, part in zip(PROJECTIONS, tensor.chunk(3))}
            continue
        owner, _, kind = key.rpartition("out_proj.")
        result[f"{owner}out.{kind}" if kind and owner in packed else key] = tensor
    return result
