"""Translation networks of transformers, Marian and BART, from a local folder or the hub."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sparsefront.artifacts.content_digest import versions
from sparsefront.models.huggingface_lm import HuggingFaceLM, LanguageModelSource
from sparsefront.settings_class import settings_class
from sparsefront.tasks.decoding import TranslationNetwork

if TYPE_CHECKING:
    from transformers import EncoderDecoderCache, PretrainedConfig, PreTrainedTokenizerBase

    from sparsefront.data.base import DataInfo

CLASSES = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration"}
SPECIAL = ("pad_token_id", "decoder_start_token_id", "eos_token_id")


@dataclass(frozen=True)
class TranslatorSource(LanguageModelSource):
    """The folder or hub repository of such a network; Marian has one sentencepiece model per language."""

    tokenizer_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", "vocab.json")
    tokenizer_extras: ClassVar[tuple[str, ...]] = (
        *("vocab.json", "merges.txt", "source.spm", "target.spm", "target_vocab.json"),
        *("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    )


class StoredTokenizer:
    """The tokenizer of a network as a `sparsefront.data.sentence_pairs.PairTokenizer`.

    Args:
        tokenizer: of transformers.
        config: of the network, which defines the special tokens.
        weights: fingerprint of the source of both.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: "PretrainedConfig", weights: Any) -> None:
        self.tokenizer, self._weights = tokenizer, weights
        self.pad, self.start, self.end = (getattr(config, name) for name in SPECIAL)

    def key(self) -> dict[str, Any]:
        return {"tokenizer": self._weights, "of": versions("transformers")}

    def encode(self, texts: list[str], side: str) -> list[list[int]]:
        text_arguments: Any = {"text" if side == "source" else "text_target": texts}
        rows = self.tokenizer(**text_arguments, verbose=False)["input_ids"]
        return [row if row[-1:] == [self.end] else [*row, self.end] for row in rows]

    def decode(self, rows: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)


@settings_class()
class HuggingFaceMT(HuggingFaceLM):
    """Settings of model huggingface_mt, the same as of huggingface_lm: the folder or hub id of a MarianMTModel or
    BartForConditionalGeneration with its tokenizer.
    """

    kinds: ClassVar[tuple[str, ...]] = ("translation",)

    @property
    def source(self) -> TranslatorSource:
        base_source = super().source
        return TranslatorSource(base_source.name, base_source.revision, base_source.path)

    def fingerprint(self) -> dict[str, Any]:
        return super().fingerprint() | {"model": "huggingface_mt"}

    def tokenizer(self, texts: Iterable[str] | None = None) -> StoredTokenizer:
        return self._sentences

    @cached_property
    def _sentences(self) -> StoredTokenizer:
        return StoredTokenizer(self._tokenizer, self.source.config(), self.source.fingerprint())

    def longest_sequence(self, info: "DataInfo") -> int | None:
        """The smaller of the network's positions and the tokenizer's limit."""
        positions: int = self._config(info).max_position_embeddings
        return min(positions, self._tokenizer.model_max_length)

    def network_class(self, config: "PretrainedConfig") -> Any:
        import transformers

        return _translating(getattr(transformers, CLASSES[config.model_type]))

    def _config(self, info: "DataInfo") -> "PretrainedConfig":
        source, known = self.source, " or ".join(CLASSES.values())
        config = source.config(use_cache=False, attn_implementation="sdpa")
        names = getattr(config, "architectures", None) or [CLASSES.get(config.model_type, config.model_type)]
        if names != [CLASSES.get(config.model_type)]:
            raise source.invalid(f"holds a {' or '.join(names)}, which does not translate: take a {known}")
        missing = [name for name in SPECIAL if not isinstance(getattr(config, name, None), int)]
        if missing:
            raise source.invalid(f"its config.json names no {missing[0]}, without which no sentence can be written")
        longest = config.max_position_embeddings
        if info.sequence_length is not None and info.sequence_length > longest:
            allowed = (
                f"has {longest} positions, and sentences have up to dataset.max_length={info.sequence_length} tokens"
            )
            raise source.invalid(f"{allowed}: give at most {longest}")
        return config


@cache
def _translating(kind: type) -> type:
    """A subclass of a transformers class with this interface, under the same name."""
    return type(kind.__name__, (_Translating, kind, TranslationNetwork), {"__doc__": kind.__doc__})


class _Translating:
    """Mixin for a transformers class. Masks are bool [B, 1, T, S], True = attend, a form that it does not inspect."""

    pad = property(lambda self: self.config.pad_token_id)
    start = property(lambda self: self.config.decoder_start_token_id)
    end = property(lambda self: self.config.eos_token_id)
    encoder = property(lambda self: self.model.encoder)
    max_positions = property(lambda self: self.config.max_position_embeddings)

    @classmethod
    def from_config(cls, config: "PretrainedConfig") -> Any:
        return cls(config)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        causal = torch.ones(1, 1, length, length, dtype=torch.bool, device=target.device).tril()
        return self._logits(target, self._memory(source, source_mask), source_mask, causal)[0]

    def encode(self, source: Tensor, source_mask: Tensor) -> "DecoderState":
        return DecoderState(self._memory(source, source_mask), source_mask)

    def step(self, tokens: Tensor, state: "DecoderState") -> tuple[Tensor, "DecoderState"]:
        caches = _empty() if state.caches is None else _copy_caches(state.caches)
        seen = torch.ones(1, 1, 1, caches.get_seq_length() + 1, dtype=torch.bool, device=tokens.device)
        logits, caches = self._logits(tokens[:, None], state.memory, state.mask, seen, caches)
        return logits[:, 0], replace(state, caches=caches)

    def reorder(self, state: "DecoderState", indices: Tensor) -> "DecoderState":
        mask = state.mask[indices]
        if state.caches is None:
            return replace(state, memory=state.memory[indices], mask=mask)
        caches = _copy_caches(state.caches)
        caches.batch_select_indices(indices)
        # keys and values are cached: only the shape of the memory is used
        return DecoderState(state.memory[:1].expand(len(indices), -1, -1), mask, caches)

    def _memory(self, source: Tensor, source_mask: Tensor) -> Tensor:
        net: Any = self
        memory: Tensor = net.model.encoder(input_ids=source, attention_mask=_square(source_mask))[0]
        return memory

    def _logits(
        self, target: Tensor, memory: Tensor, source_mask: Tensor, seen: Tensor, caches: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits [B, T, vocabulary], and the caches after these tokens."""
        output = super().forward(
            attention_mask=_square(source_mask),
            decoder_input_ids=target,
            decoder_attention_mask=seen,
            encoder_outputs=(memory,),
            past_key_values=caches,
            use_cache=caches is not None,
        )
        return output.logits, output.past_key_values


@dataclass(frozen=True)
class DecoderState:
    """The decoder state between two steps.

    Args:
        memory: the encoder's output, [B, S, width].
        mask: bool [B, S], True for source tokens.
        caches: keys and values of the tokens so far and of the source, an EncoderDecoderCache; None before the first token.
    """

    memory: Tensor
    mask: Tensor
    caches: "EncoderDecoderCache | None" = None


def _square(mask: Tensor) -> Tensor:
    return mask.bool()[:, None, None, :]


def _empty() -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(DynamicCache(), DynamicCache())


def _copy_caches(caches: Any) -> Any:
    """A shallow copy: a step replaces its tensors."""
    from transformers import EncoderDecoderCache

    parts = [copy.copy(part) for part in (caches.self_attention_cache, caches.cross_attention_cache)]
    for part in parts:
        part.layers = [copy.copy(layer) for layer in part.layers]
    return EncoderDecoderCache(*parts)
