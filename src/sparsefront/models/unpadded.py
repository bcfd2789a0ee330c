"""Encoders of transformers without padding: real tokens end to end through all products and norms, attention by offsets."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

MASK, UNPADDED = "attention_mask", "unpadded"
KEY = "inference.unpadded"
KERNELS = (
    "sparsefront_kernels.attention"  # imported by `unpad`: code of kernels is no part of the keys of padded evaluations
)
ENCODERS = {
    "BertModel": "BertSelfAttention",
    "RobertaModel": "RobertaSelfAttention",
    "MPNetModel": "MPNetSelfAttention",
}
"""Class of an encoder of transformers -> that of its attentions."""


@settings_class()
class Inference:
    """Settings of group `inference`: how networks run where they are evaluated and timed, dense and sparse alike.

    Args:
        unpadded: run encoders on real tokens alone, see `unpad`; of BERT, RoBERTa and MPNet.
    """

    unpadded: bool = False


def unpad(net: nn.Module, *, key: str = KEY, value: object = True) -> nn.Module:
    """Make the encoder of a network run without padding, in place; names of modules and tensors do not change.

    The network takes and returns what it did before. Outputs at real tokens are equal up to rounding; those at padding mean
    nothing. As often as the lengths of rows change, so does the number of tokens that are computed (`fit_tokens`).

    Args:
        net: BERT, RoBERTa or MPNet of transformers, with any head; no decoder, and not yet swapped. Inference only.
        key, value: of the setting that asked for it.
    Returns:
        the same network.
    Raises:
        InvalidSetting: it has no such encoder.
    """
    parts = [part for part in net.modules() if _is_encoder(part)]
    if not parts and not any(_unpadded_parts(net)):
        kinds = ", ".join(name.removesuffix("Model") for name in ENCODERS)
        raise InvalidSetting(key, value, f"needs an encoder of transformers' {kinds}; this is {type(net).__name__}")
    import_module(KERNELS)
    for encoder in parts:
        if getattr(encoder.config, "is_decoder", False):
            raise InvalidSetting(key, value, f"needs an encoder; this {type(encoder).__name__} is a decoder")
        attention = ENCODERS[type(encoder).__name__]
        for part in encoder.modules():
            if type(part).__name__ == attention:
                part.__class__ = _unpadded_class(UnpaddedAttention, type(part))
        stack: Any = encoder.encoder
        if hasattr(stack, "relative_attention_bias"):
            reach = encoder.config.max_position_embeddings - 1
            buckets = stack.relative_position_bucket(torch.arange(-reach, reach + 1))
            buckets = buckets.to(stack.relative_attention_bias.weight.device)
            encoder.register_buffer("distance_buckets", buckets, persistent=False)
        encoder.__class__ = _unpadded_class(UnpaddedEncoder, type(encoder))
    return net


def is_unpadded(net: nn.Module) -> bool:
    """Whether `unpad` changed this network, or one that it was made from."""
    return any(_unpadded_parts(net))


def _unpadded_parts(net: nn.Module) -> Iterator["UnpaddedEncoder"]:
    return (part for part in net.modules() if isinstance(part, UnpaddedEncoder))


def _is_encoder(part: nn.Module) -> bool:
    return type(part).__name__ in ENCODERS and type(part).__module__.startswith("transformers.")


@cache
def _unpadded_class(mixin: type, kind: type) -> type:
    return type(f"Unpadded{kind.__name__}", (mixin, kind), {})


# The number of tokens that a batch is computed with. Few numbers are few CUDA graphs.


def count_tokens(rows: int, total: int) -> int:
    """The tokens computed for a batch of this many rows and real tokens: rounded up so that a row has a whole number on average.

    That number is a multiple of an eighth of the power of two below it: 3 % more on average, at most 12.5 %.
    """
    step = max(1, (1 << (max(1, total // rows).bit_length() - 1)) // 8, 8 // rows)
    return rows * -(-max(total, 1) // (rows * step)) * step


def fit_tokens(net: nn.Module, inputs: Mapping[str, Any]) -> int | None:
    """Fix the number of tokens with which calls are recorded or compiled from now on: that of this batch.

    A recorded call takes other lengths of the same number of tokens, rounded up, or of fewer. Eager calls need no number.

    Args:
        net: without an unpadded encoder nothing changes.
        inputs: keyword arguments of the net.
    Returns:
        that number; None without an unpadded encoder.
    """
    tokens = None
    for part in _unpadded_parts(net):
        real = _real_tokens(inputs["input_ids"], inputs.get(MASK))
        part.tokens = tokens = count_tokens(len(real), int(real.sum()))
    return tokens


def fill_rows(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same batch with a mask of ones: every row has all of its tokens, as at a fixed length."""
    return {name: torch.ones_like(value) if name == MASK else value for name, value in inputs.items()}


def set_lengths(net: nn.Module, inputs: Mapping[str, Any], lengths: Sequence[int] | Tensor) -> dict[str, Any]:
    """The same batch of a network with `lengths` [B] real tokens at the beginning of its rows.

    Raises:
        InvalidSetting: not one length for each row, or one that is not from 1 to the length of the rows; or the network takes
            no mask.
    """
    ids = inputs.get("input_ids")
    try:
        inspect.signature(net.forward).bind_partial(**{MASK: None})
    except TypeError:
        raise InvalidSetting("lengths", lengths, f"needs {MASK}, which {type(net).__name__} does not take") from None
    try:
        numbers = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):  # no array of numbers
        numbers = torch.empty(0)
    whole = not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not whole or numbers.shape != ids.shape[:1]:
        raise InvalidSetting("lengths", lengths, "is an integer for each row of input_ids [B, L]")
    for length in numbers.tolist():
        if not 1 <= length <= ids.shape[1]:
            raise InvalidSetting("lengths", length, f"is from 1 to {ids.shape[1]}, the length of the rows")
    real = torch.arange(ids.shape[1], device=ids.device) < numbers.to(ids.device)[:, None]
    return dict(inputs) | {MASK: real.long()}


class UnpaddedEncoder(nn.Module):
    """The encoder of a network, without padding between its blocks; see `unpad`."""

    tokens: int | None = None  # see `fit_tokens`

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """As the padded encoder, in eval mode.

        Args:
            input_ids: int64 [B, L].
            attention_mask: [B, L], 0 = padding.
        Raises:
            ValueError: a mask of another shape, a row without a token, more positions than the network has, or another
                argument.
        """
        for name, value in ({"input_ids": True} if input_ids is None else others).items():
            if value is not None and value is not False:
                raise ValueError(f"an unpadded encoder takes input_ids and their mask, types and positions, not {name}")
        assert input_ids is not None
        net: Any = self
        rows, length = input_ids.shape
        shift = getattr(net.embeddings, "padding_idx", None)
        most = net.config.max_position_embeddings - (0 if shift is None else shift + 1)
        if length > most:
            raise ValueError(f"rows of {length} tokens, and the network has {most} positions")
        real = _real_tokens(input_ids, attention_mask)
        tokens = self._count_tokens(real)
        count = real.flatten().cumsum(0, dtype=torch.int32)  # of real tokens up to each place of the batch
        torch._assert_async(count[-1] <= tokens)  # a recorded call with more tokens than it was recorded for
        offsets = F.pad(count[length - 1 :: length], (1, 0))
        number = torch.arange(1, tokens + 1, device=count.device, dtype=torch.int32)
        place = torch.searchsorted(count, number).clamp(max=len(count) - 1)  # of each computed token
        columns = place % length

        def pack(value: Tensor) -> Tensor:
            return value.expand(rows, length).reshape(-1)[place][None]

        if position_ids is None and shift is None:
            packed = {"position_ids": columns[None]}
        else:
            packed = {"position_ids": pack(_positions(input_ids, shift) if position_ids is None else position_ids)}
        if token_type_ids is not None:
            packed["token_type_ids"] = pack(token_type_ids)
        hidden = net.embeddings(input_ids=pack(input_ids), **packed)[0]
        extra = () if not hasattr(self, "distance_buckets") else (self._distances(hidden, columns),)
        for block in net.encoder.layer:
            output = block(hidden, offsets, *extra)
            hidden = output[0] if isinstance(output, tuple) else output
        states = hidden.index_select(0, (count - 1).clamp(0, tokens - 1))
        output = self._output(states.view(rows, length, -1))
        return output if (net.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def _count_tokens(self, real: Tensor) -> int:
        """The tokens to compute, of the mask's values where they can be read."""
        recorded = torch.compiler.is_compiling() or (real.is_cuda and torch.cuda.is_current_stream_capturing())
        if recorded or isinstance(real, torch._subclasses.FakeTensor):
            if self.tokens is None:
                raise ValueError(
                    "an unpadded network is recorded or exported for one number of tokens, which is not set"
                )
            return self.tokens
        lengths = real.sum(1).tolist()
        if 0 in lengths:
            row = lengths.index(0)
            raise ValueError(f"row {row} of the attention mask has no token; an unpadded batch needs one in each row")
        return count_tokens(len(lengths), sum(lengths))

    def _distances(self, hidden: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The bias of attention by distance [heads, 2 * positions - 1], and the column of each token, int32 [T]."""
        net: Any = self
        bias = net.encoder.relative_attention_bias(net.distance_buckets)
        return bias.t().to(hidden.dtype).contiguous(), columns.int()

    def _output(self, states: Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        pooler: Any = getattr(self, "pooler", None)
        return BaseModelOutputWithPooling(states, None if pooler is None else pooler(states))


def _real_tokens(input_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Bool [B, L], True for tokens that are not padding."""
    if mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    if mask.shape != input_ids.shape:  # those of pairs of tokens may hold 0 for real ones
        raise ValueError(f"an unpadded encoder takes attention_mask {[*input_ids.shape]}, not {[*mask.shape]}")
    return mask != 0


def _positions(input_ids: Tensor, padding: int) -> Tensor:
    """Position ids [B, L] of RoBERTa and MPNet, which count the tokens that are not `padding`."""
    counted = (input_ids != padding).long()
    return counted.cumsum(1) * counted + padding


class UnpaddedAttention(nn.Module):
    """An attention of BERT, RoBERTa or MPNet within each sequence of tokens stored end to end."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        position_bias: tuple[Tensor, Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """The encoder's blocks pass `attention_mask` and `position_bias` to their attentions unread.

        Args:
            hidden_states: [T, width].
            attention_mask: the offsets of sequences, int32 [B + 1], of `attend_unpadded`.
            position_bias: its bias and columns; of MPNet.
        """
        net: Any = self
        projections = (net.query, net.key, net.value) if position_bias is None else (net.q, net.k, net.v)
        heads = net.num_attention_heads
        q, k, v = (part(hidden_states).unflatten(-1, (heads, -1)) for part in projections)
        mixed = torch.ops.sparsefront.attend_unpadded(
            q, k, v, attention_mask, q.shape[-1] ** -0.5, *(position_bias or ())
        ).flatten(1)
        return (mixed, None) if position_bias is None else (net.o(mixed),)
