"""A translation transformer: encoder, decoder, and one embedding shared by both languages and the output."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.checkpoint import weights_fingerprint
from sparsefront.models.translation import TranslationModel, check_positions
from sparsefront.settings_class import settings_class
from sparsefront.tasks.decoding import TranslationNetwork

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


@dataclass(frozen=True)
class Size:
    """Width, MLP hidden width, heads, and number of blocks in encoder and decoder each."""

    width: int
    hidden: int
    heads: int
    depth: int


SIZES = {
    "tiny": Size(32, 64, 2, 1),
    "small": Size(256, 1024, 4, 3),
    "base": Size(512, 2048, 8, 6),
    "big": Size(1024, 4096, 16, 6),
}
"""tiny is for tests, small for some ten thousand sentences; base and big are as in the paper."""


@settings_class()
class TransformerMT(TranslationModel):
    """Settings of model transformer_mt.

    Args:
        size: tiny, small, base (512/2048) or big (1024/4096, 16 heads, 216 million weights with 37,000 tokens).
        norm: pre normalizes inputs of attention and MLP; post normalizes the sums after them, as in the paper, and needs more
            warm-up.
        dropout: on embeddings, on outputs of attention and MLP, and on the MLP's hidden layer.
        max_positions: maximum number of tokens of a sentence.
        path: local checkpoint; null = random weights.
    """

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"size", "norm", "dropout", "max_positions", "path"})

    size: Literal["tiny", "small", "base", "big"] = "small"
    norm: Literal["pre", "post"] = "pre"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    max_positions: PositiveInt = 1024
    path: str | None = None

    @property
    def variant(self) -> str:
        return self.size if self.norm == "pre" else f"{self.size} {self.norm}-norm"

    def fingerprint(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("size", "norm", "dropout", "max_positions")}
        weights = "random" if self.path is None else weights_fingerprint(self.path)
        return {"model": "transformer_mt", **own, "weights": weights}

    def prunable(self, net: nn.Module) -> list[str]:
        """q, k, v and out of every attention, fc1 and fc2 of every MLP; not the embedding, which also computes the logits."""
        return linear_and_conv_layers(net, inside=("encoder", "decoder"))

    def longest_sequence(self, info: "DataInfo") -> int:
        return self.max_positions

    def network(self, info: "DataInfo") -> "TranslationTransformer":
        check_positions(info, self.max_positions)
        return TranslationTransformer(self, info)


class TranslationTransformer(TranslationNetwork):
    """After Vaswani et al., "Attention Is All You Need", 2017; with norm=pre after Xiong et al., "On Layer Normalization in the
    Transformer Architecture", 2020, with a final norm in encoder and decoder.
    """

    def __init__(self, settings: TransformerMT, info: "DataInfo") -> None:
        super().__init__()
        size = SIZES[settings.size]
        self.max_positions = settings.max_positions
        self.embedding = nn.Embedding(info.vocabulary, size.width)
        self.register_buffer("positions", sinusoids(settings.max_positions, size.width), persistent=False)
        self.dropout = nn.Dropout(settings.dropout)
        sizes = size.width, size.heads, size.hidden, settings.dropout, settings.norm == "pre"
        ends = nn.LayerNorm if settings.norm == "pre" else nn.Identity
        self.encoder = Encoder([EncoderBlock(*sizes) for _ in range(size.depth)], ends(size.width))
        self.decoder = nn.ModuleList(DecoderBlock(*sizes) for _ in range(size.depth))
        self.norm = ends(size.width)
        self.note_vocabulary(info.vocabulary_digest)
        self.apply(_initialize)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        memory = self.run_encoder(source, source_mask)
        x = self._embed(target, 0)
        for block in self.decoder:
            x = block(x, memory, source_mask[:, None, None, :])
        return self._logits(x)

    def run_encoder(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """The encoder output, read by the decoder: [B, S, width]."""
        return self.encoder(self._embed(source, 0), source_mask[:, None, None, :])

    def encode(self, source: Tensor, source_mask: Tensor) -> "DecoderState":
        memory = self.run_encoder(source, source_mask)
        return DecoderState(source_mask[:, None, None, :], [BlockCache(memory) for _ in self.decoder])

    def step(self, tokens: Tensor, state: "DecoderState") -> tuple[Tensor, "DecoderState"]:
        x = self._embed(tokens[:, None], state.length)
        caches = [cache.copy() for cache in state.caches]
        for block, cache in zip(self.decoder, caches, strict=True):
            x = block(x, None, state.mask, cache)
        return self._logits(x)[:, 0], DecoderState(state.mask, caches, state.length + 1)

    def reorder(self, state: "DecoderState", indices: Tensor) -> "DecoderState":
        return DecoderState(state.mask[indices], [cache.at(indices) for cache in state.caches], state.length)

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        """Embed tokens that start at position `first`: [B, T, width]."""
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[first : first + tokens.shape[1]])

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)


def sinusoids(positions: int, width: int) -> Tensor:
    """float32 [positions, width]: sines in the first half of the features, cosines in the second."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10000.0) / max(1, width // 2 - 1)))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@dataclass(frozen=True)
class DecoderState:
    """The state of all blocks.

    Args:
        mask: bool [B, 1, 1, S], of the source.
        caches: one per block.
        length: number of tokens so far.
    """

    mask: Tensor
    caches: list["BlockCache"]
    length: int = 0


class BlockCache:
    """Keys and values [B, heads, T, d] of one block's attentions: of the tokens so far, and of the source.

    Args:
        memory: [B, S, width], from which the first step computes keys and values; None afterwards.
    """

    def __init__(self, memory: Tensor | None) -> None:
        self.memory = memory
        self.own: tuple[Tensor, Tensor] | None = None
        self.of_source: tuple[Tensor, Tensor] | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of one more token, and return all."""
        new = keys, values
        self.own = new if self.own is None else tuple(torch.cat(pair, 2) for pair in zip(self.own, new, strict=True))
        return self.own

    def copy(self) -> "BlockCache":
        """A shallow copy."""
        other = BlockCache(self.memory)
        other.own, other.of_source = self.own, self.of_source
        return other

    def at(self, indices: Tensor) -> "BlockCache":
        """The cache of these rows."""
        other = BlockCache(None if self.memory is None else self.memory[indices])
        other.own, other.of_source = (
            None if pair is None else (pair[0][indices], pair[1][indices]) for pair in (self.own, self.of_source)
        )
        return other


class Attention(nn.Module):
    """softmax(Q Kᵀ / √d) V through PyTorch's fused attention, with four separate Linear projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        """[B, T, width].

        Args:
            x: [B, T, width], queries; memory: [B, S, width], keys and values.
            mask: bool, broadcastable to [B, heads, T, S], True = attend; None: to all.
        """
        return self.attend(self.queries(x), *self.keys_and_values(memory), mask, causal)

    def queries(self, x: Tensor) -> Tensor:
        return self._by_head(self.q(x))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self._by_head(self.k(memory)), self._by_head(self.v(memory))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return self.out(attended.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, heads, T, d]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Mlp(nn.Module):
    """Two Linears with a ReLU between."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width] -> [B, T, width]
        return self.fc2(self.dropout(F.relu(self.fc1(x))))


class Encoder(nn.Module):
    """All encoder blocks."""

    def __init__(self, blocks: list["EncoderBlock"], norm: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), norm

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # [B, S, width], same shape; mask bool [B, 1, 1, S]
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class EncoderBlock(nn.Module):
    """Attention over the source, then an MLP, with residual connections."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), Mlp(width, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # [B, S, width], same shape; mask bool [B, 1, 1, S]
        if self.pre:
            y = self.norm1(x)
            x = x + self.dropout(self.attention(y, y, mask))
            return x + self.dropout(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.mlp(x)))


class DecoderBlock(nn.Module):
    """Attention over the tokens so far, attention over the source, and an MLP, with residual connections."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention, self.cross = Attention(width, heads), Attention(width, heads)
        self.mlp = Mlp(width, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor, cache: BlockCache | None = None) -> Tensor:
        """[B, T, width], like x.

        Args:
            memory: [B, S, width]; None with a cache, which holds its keys and values.
            mask: bool [B, 1, 1, S], of the source.
            cache: x is then one more token [B, 1, width] after those in the cache, and is appended to it.
        """
        if self.pre:
            x = x + self.dropout(self._attend_back(self.norm1(x), cache))
            x = x + self.dropout(self._attend_source(self.norm2(x), memory, mask, cache))
            return x + self.dropout(self.mlp(self.norm3(x)))
        x = self.norm1(x + self.dropout(self._attend_back(x, cache)))
        x = self.norm2(x + self.dropout(self._attend_source(x, memory, mask, cache)))
        return self.norm3(x + self.dropout(self.mlp(x)))

    def _attend_back(self, x: Tensor, cache: BlockCache | None) -> Tensor:
        if cache is None:
            return self.attention(x, x, None, True)
        keys, values = cache.append(*self.attention.keys_and_values(x))
        return self.attention.attend(self.attention.queries(x), keys, values, None)

    def _attend_source(self, x: Tensor, memory: Tensor | None, mask: Tensor, cache: BlockCache | None) -> Tensor:
        if cache is None:
            return self.cross(x, memory, mask)
        if cache.of_source is None:
            cache.of_source = self.cross.keys_and_values(cache.memory)
            cache.memory = None
        return self.cross.attend(self.cross.queries(x), *cache.of_source, mask)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
