"""Attention with separate Linear projections, so that each can be pruned and swapped.

`nn.MultiheadAttention` packs query, key and value into one parameter, and its fused inference path never calls its output
projection, so a sparse layer would be silently bypassed. `replace_multihead_attention` rebuilds such modules, and
`split_packed_projections` converts checkpoints.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

PROJECTIONS = ("q", "k", "v")


class SelfAttention(nn.Module):
    """Multi-head softmax(Q Kᵀ / √d) V over one sequence, through PyTorch's fused attention.

    Args:
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


class SplitAttention(nn.Module):
    """A drop-in replacement for `nn.MultiheadAttention` with four Linears.

    Args:
        packed: source of widths, heads, device and dtype; weights are not copied.
    """

    in_proj_bias = None  # read by encoder layers; None disables their fast path, which needs packed weights
    _qkv_same_embed_dim = False

    def __init__(self, packed: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.heads, self.head_dim = packed.embed_dim, packed.num_heads, packed.head_dim
        self.kdim, self.vdim = packed.kdim, packed.vdim
        self.dropout, self.batch_first = packed.dropout, packed.batch_first
        bias, width = packed.in_proj_bias is not None, packed.embed_dim
        # on meta: random initialization would be wasted
        self.q = nn.Linear(width, width, bias=bias, device="meta")
        self.k = nn.Linear(packed.kdim, width, bias=bias, device="meta")
        self.v = nn.Linear(packed.vdim, width, bias=bias, device="meta")
        self.out = nn.Linear(width, width, bias=bias, device="meta")

    @property
    def num_heads(self) -> int:
        return self.heads

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As nn.MultiheadAttention; uses PyTorch's fused attention without `need_weights`."""
        alone = query.dim() == 2
        if alone:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        q, k, v = self._by_head(self.q(query)), self._by_head(self.k(key)), self._by_head(self.v(value))
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None if causal else self._add_masks(attn_mask, key_padding_mask, q)
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal)
        y = self.out(mixed.transpose(1, 2).flatten(2))
        if alone:
            return y[0], None if weights is None else weights[0]
        return y if self.batch_first else y.transpose(0, 1), weights

    def _by_head(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, heads, T, width / heads]
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def _add_masks(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """The additive mask of the scores [B, heads, L, S]."""
        added = None
        if attn_mask is not None:
            added = _additive(attn_mask, q.dtype)
            added = added if added.dim() == 2 else added.unflatten(0, (-1, self.heads))
        if padding is not None:
            hidden = _additive(padding, q.dtype)[:, None, None]
            added = hidden if added is None else added + hidden
        return added


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bool mask (True = hidden) to an additive one."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def split_multihead_attention(packed: nn.MultiheadAttention) -> SplitAttention:
    """The same function with separate projections; copies parameters, keeps device and dtype.

    Raises:
        ValueError: the module adds keys, which separate Linears do not support.
    """
    if packed.bias_k is not None or packed.add_zero_attn:
        raise ValueError("only an nn.MultiheadAttention with no added keys can be split")
    split = SplitAttention(packed)
    if packed.in_proj_weight is None:
        parts = [packed.q_proj_weight, packed.k_proj_weight, packed.v_proj_weight]
    else:
        parts = list(packed.in_proj_weight.chunk(3))
    for name, weight in zip(PROJECTIONS, parts, strict=True):
        getattr(split, name).weight = _copy_parameter(weight, packed.out_proj.weight)
    if packed.in_proj_bias is not None:
        for name, value in zip(PROJECTIONS, packed.in_proj_bias.chunk(3), strict=True):
            getattr(split, name).bias = _copy_parameter(value, packed.in_proj_bias)
    split.out.weight, split.out.bias = packed.out_proj.weight, packed.out_proj.bias
    return split.train(packed.training)


def _copy_parameter(part: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(part.detach().clone(), requires_grad=like.requires_grad)


def replace_multihead_attention(net: nn.Module) -> list[str]:
    """Split every `nn.MultiheadAttention` below `net` in place; shared modules stay shared.

    Returns:
        the names of the replaced modules.
    """
    return replace_modules(
        net, lambda _, child: split_multihead_attention(child) if isinstance(child, nn.MultiheadAttention) else None
    )


def replace_modules(net: nn.Module, made: Callable[[str, nn.Module], nn.Module | None]) -> list[str]:
    """Replace each module below `net` by `made(name, module)`; None keeps it. Shared modules are built once.

    Returns:
        the names of the replaced modules.
    """
    new: dict[nn.Module, nn.Module] = {}
    replaced = []
    for parent_name, parent in list(net.named_modules()):
        for own, child in parent.named_children():
            name = f"{parent_name}.{own}".lstrip(".")
            other = new.get(child) or made(name, child)
            if other is not None:
                new[child] = other
                setattr(parent, own, other)
                replaced.append(name)
    return replaced


def split_packed_projections(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert a checkpoint's packed attention weights to q, k, v, out; split ones are not changed."""
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


class WindowAttention(nn.Module):
    """torchvision's `ShiftedWindowAttention` (Swin), which reads the weights of its Linears instead of calling them.

    Args:
        given: source of parameters, buffers and settings, whose names do not change.
    """

    relative_position_index: Tensor

    def __init__(self, given: nn.Module) -> None:
        super().__init__()
        settings: Any = given
        self.window_size, self.shift_size = tuple(settings.window_size), tuple(settings.shift_size)
        self.num_heads = settings.num_heads
        self.attention_dropout, self.dropout = settings.attention_dropout, settings.dropout
        self.qkv, self.proj = settings.qkv, settings.proj
        self.relative_position_bias_table = settings.relative_position_bias_table
        self.register_buffer("relative_position_index", settings.relative_position_index)
        self.train(given.training)

    def forward(self, x: Tensor) -> Tensor:  # [B, H, W, width] -> [B, H, W, width]
        batch, height, width = x.shape[:3]
        rows, columns = self.window_size
        x = F.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
        sizes = x.shape[1:3]
        shift = [
            0 if window >= size else by
            for by, window, size in zip(self.shift_size, self.window_size, sizes, strict=True)
        ]
        if any(shift):
            x = x.roll((-shift[0], -shift[1]), (1, 2))
        y = self._attend_windows(self._windows(x), self._hide_opposite(x, shift) if any(shift) else None)
        y = y.view(batch, sizes[0] // rows, sizes[1] // columns, rows, columns, -1).transpose(2, 3)
        y = y.reshape(batch, *sizes, -1)
        if any(shift):
            y = y.roll((shift[0], shift[1]), (1, 2))
        return y[:, :height, :width].contiguous()

    def _attend_windows(self, windows: Tensor, hidden: Tensor | None) -> Tensor:  # [B * windows, L, width], the same
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        tokens = windows.shape[1]
        bias = self.relative_position_bias_table[self.relative_position_index].view(tokens, tokens, -1).permute(2, 0, 1)
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias
        if hidden is not None:  # [windows, L, L]
            scores = (scores.unflatten(0, (-1, len(hidden))) + hidden[:, None]).flatten(0, 1)
        weights = F.dropout(scores.softmax(-1), self.attention_dropout, self.training)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        return F.dropout(self.proj(mixed), self.dropout, self.training)

    def _windows(self, x: Tensor) -> Tensor:  # [B, H, W, width] -> [B * windows, L, width]
        rows, columns = self.window_size
        cut = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows)).transpose(2, 3)
        return cut.reshape(-1, rows * columns, x.shape[-1])

    def _hide_opposite(self, x: Tensor, shift: Sequence[int]) -> Tensor:
        """[windows, L, L], additive mask: after the shift, pixels from opposite sides do not attend to each other."""
        sides = []
        for size, window, by in zip(x.shape[1:3], self.window_size, shift, strict=True):
            place = torch.arange(size, device=x.device)
            sides.append(
                (place >= size - window).long() + (place >= size - by).long() if by else torch.zeros_like(place)
            )
        region = self._windows((3 * sides[0][:, None] + sides[1])[None, :, :, None])
        apart = region != region.transpose(1, 2)
        return torch.zeros_like(apart, dtype=x.dtype).masked_fill(apart, -100.0)


# MPNet's attention, which transformers computes step by step.


@contextmanager
def fuse_attention(net: nn.Module, *, wanted: bool = True) -> Iterator[None]:
    """Context in which the attention of MPNet runs in one kernel, in training and evaluation.

    transformers adds relative positions and mask to the scores of each layer, in several passes over [B, heads, L, L] in
    fp32. Here they are added to each other once, in the dtype of the products. Results differ by rounding, and dropout
    draws other numbers.

    Args:
        net: modules other than transformers' `MPNetEncoder` are not changed.
        wanted: False changes nothing.
    """
    mpnet = sys.modules.get("transformers.models.mpnet.modeling_mpnet")
    encoders: list[Any] = [
        part for part in net.modules() if wanted and mpnet is not None and type(part) is mpnet.MPNetEncoder
    ]
    modules: list[tuple[Any, Callable[..., Any]]] = [(one, _encode) for one in encoders]
    modules += [(layer.attention.attn, _attend) for one in encoders for layer in one.layer]
    try:
        for module, forward in modules:  # methods, so that compiled code of a block serves all of them
            module.forward = MethodType(forward, module)
        yield
    finally:
        for module, _ in modules:
            del module.forward


def _encode(encoder: Any, hidden: Tensor, attention_mask: Tensor | None = None, **settings: Any) -> Any:
    """The blocks of MPNet on `hidden` [B, L, width]; `attention_mask` is added to the scores [B, heads, L, L]."""
    if settings.get("output_attentions") or settings.get("output_hidden_states"):
        return type(encoder).forward(encoder, hidden, attention_mask, **settings)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    bias = encoder.compute_position_bias(hidden[:1]).to(dtype)
    if attention_mask is not None:
        bias = bias + attention_mask.clamp(min=torch.finfo(dtype).min).to(dtype)
    bias = bias.expand(len(hidden), *bias.shape[1:])
    for layer in encoder.layer:
        hidden = layer(hidden, None, bias)[0]
    output = sys.modules[type(encoder).__module__].BaseModelOutput  # type: ignore[attr-defined]
    return output(last_hidden_state=hidden) if settings.get("return_dict") else (hidden,)


def _attend(
    attention: Any,
    hidden: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, ...]:
    """One attention of MPNet; `position_bias` [B, heads, L, L] includes the mask."""
    if attention_mask is not None or settings.get("output_attentions"):
        return type(attention).forward(attention, hidden, attention_mask, position_bias, **settings)
    projections = attention.q, attention.k, attention.v
    q, k, v = (part(hidden).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2) for part in projections)
    dropout = attention.dropout.p if attention.training else 0.0
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # the others give the bias no gradient
        mixed = F.scaled_dot_product_attention(q, k, v, position_bias, dropout_p=dropout)
    return (attention.o(mixed.transpose(1, 2).flatten(2)),)
