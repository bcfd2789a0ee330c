"""BERT by transformers: from the hub, from a local folder, or of a known size with random weights."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn

from sparsefront import progress
from sparsefront.errors import InvalidSetting
from sparsefront.models.base import Model, linear_and_conv_layers, save_config
from sparsefront.models.bert_source import BertSource, folder_name, name_classes
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertTokenizer, PreTrainedTokenizerBase

    from sparsefront.data.base import DataInfo


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LARGEST_ALPHABET = 1000


def train_wordpiece(texts: Iterable[str], *, vocabulary_size: int, max_length: int) -> "BertTokenizer":
    """A fast, lower-casing BERT tokenizer with exactly `vocabulary_size` tokens; [PAD] is token 0.

    The same texts, in any order, give the same tokens and numbers. Where the texts yield fewer tokens, the rest is
    filled with [unused0], [unused1], ... as in BERT's own vocabulary, so that every row of embeddings has its token.

    Args:
        max_length: the most tokens that the network takes.
    """
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertTokenizer

    texts = list(texts)
    tokenizer = _make_untrained()
    alphabet = _alphabet(texts, tokenizer)
    # The trainer numbers the inner pieces ("##a") in the order of a hash table that differs from run to run, and breaks
    # ties between merges by these numbers. Handing them over as special tokens fixes the numbers beforehand; only the
    # vocabulary is kept from this tokenizer, so they are never used as special.
    inner = [f"##{character}" for character in alphabet if _continues_words(character, tokenizer)]
    trainer = WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[*SPECIAL, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=progress.shows(),
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    vocabulary = tokenizer.get_vocab()
    vocabulary |= {f"[unused{i}]": len(vocabulary) + i for i in range(vocabulary_size - len(vocabulary))}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=max_length)


def _make_untrained() -> "Tokenizer":
    """BERT's cleaning and splitting of text, without a vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _alphabet(texts: list[str], tokenizer: "Tokenizer") -> list[str]:
    """The most frequent characters of the cleaned texts in order of code points; rarer ones become [UNK]."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    cleaned: Counter[str] = Counter()
    for character, count in raw.items():
        for part in tokenizer.normalizer.normalize_str(character):
            if not part.isspace():
                cleaned[part] += count
    ranked = sorted(cleaned, key=lambda character: (-cleaned[character], character))
    return sorted(ranked[:LARGEST_ALPHABET])


def _continues_words(character: str, tokenizer: "Tokenizer") -> bool:
    """Whether the character can stand inside a word; punctuation and Chinese characters are words of their own."""
    cleaned = tokenizer.normalizer.normalize_str(f"a{character}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(cleaned)) == 1


SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 8192,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "base": {},  # what transformers takes for unsaid
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
CLASSES = {"sequence_classification": "BertForSequenceClassification", "extractive_qa": "BertForQuestionAnswering"}
HEADS = {"sequence_classification": ("bert.pooler", "classifier"), "extractive_qa": ("qa_outputs",)}


MEASURES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


@settings_class()
class Bert(Model):
    """Settings of model bert. `path` and `size` exclude each other; with neither, `name` is fetched from the hub.

    Args:
        name: hub id of a BERT.
        revision: of it, a branch, tag or commit. Runs are keyed by the commit; name it to have the same weights elsewhere.
        path: local folder as `save_pretrained` writes it: config.json, weights, tokenizer.
        size: tiny, base or large, with random weights and a vocabulary learnt from the dataset's texts.
        prune_head: what reads the encoder out (pooler and classifier, or the span classifier) may be pruned too.
    """

    kinds: ClassVar[tuple[str, ...]] = tuple(CLASSES)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"name", "revision", "path", "size"})

    name: str = "bert-base-uncased"
    revision: str = "main"
    path: str | None = None
    size: Annotated[
        Literal["tiny", "base", "large"] | None, Field(description="null: weights from path or the hub")
    ] = None
    prune_head: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.path is not None:
            raise InvalidSetting("size", self.size, "means random weights and excludes path; set one of them to null")

    @property
    def variant(self) -> str:
        """The size, or the last part of the local folder or hub id; of a folder of the hub's cache, its repository's."""
        if self.size is not None:
            return self.size
        return Path(self.name).name if self.path is None else folder_name(self.path)

    def settings_used(self) -> dict[str, Any]:
        """`name` and `revision` only where it was fetched: they say nothing about weights from a folder or of a size."""
        own = {} if self.size is None and self.path is None else {"name": None, "revision": None}
        return asdict(self) | own | {"path": self.path and folder_name(self.path)}

    def network_facts(self, net: nn.Module) -> dict[str, Any]:
        """The measures that tell one BERT from another."""
        return {name: getattr(net.config, name) for name in MEASURES}

    @property
    def source(self) -> BertSource | None:
        """Where weights come from; None = random."""
        return BertSource(self.name, self.revision, self.path) if self.size is None else None

    @property
    def checkpoint(self) -> str | None:
        return None if self.size is not None else self.path or self.name

    def check(self) -> None:
        if self.source is not None:
            self.source.check()

    def at_commit(self) -> Self:
        from_hub = self.source is not None and self.path is None
        return replace(self, revision=self.source.commit()) if from_hub else self

    def fingerprint(self) -> dict[str, Any]:
        return {"model": "bert", **({"random": self.size} if self.source is None else self.source.fingerprint())}

    def build(self, info: "DataInfo") -> nn.Module:
        """transformers' class for sequence classification or question answering, with PyTorch's fused attention.

        The pooler, which some checkpoints lack, counts as part of the head.
        """
        config = self._config(info)
        if self.source is not None:
            return self.source.network(
                _network_class(info.kind), config, head=HEADS[info.kind], classes=info.class_names
            )
        net = _network_class(info.kind)(config)
        name_classes(net, info.class_names)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        config = self._config(info)
        with torch.device("meta"):
            return _network_class(info.kind)(config)

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        """From the export's config.json; built where it has none."""
        if not (exported / "config.json").is_file():
            return self.build(info)
        source = BertSource(self.name, self.revision, str(exported))
        return _network_class(info.kind)(source.config(attn_implementation="sdpa"))

    def longest_sequence(self, info: "DataInfo") -> int:
        return self._config(info).max_position_embeddings

    def prunable(self, net: nn.Module) -> list[str]:
        """query, key, value, attention output, intermediate and output of every encoder layer; not the embeddings."""
        heads = [name for names in HEADS.values() for name in names] if self.prune_head else []
        return linear_and_conv_layers(net, inside=("bert.encoder", *heads))

    def tokenizer(self, texts: Iterable[str] | None = None) -> "PreTrainedTokenizerBase":
        """The fast tokenizer that belongs to the weights; calls after the first give the same object.

        Args:
            texts: read only with `size`, to learn as many tokens from them as the network has embeddings.
        Raises:
            InvalidSetting: the tokenizer cannot be read, or has more tokens than the network has embeddings.
            ValueError: `size` is set, and there are no texts.
        """
        if not self._tokenizers:
            self._tokenizers.append(self._train_tokenizer(texts) if self.source is None else self.source.tokenizer())
        return self._tokenizers[0]

    def save_pretrained_files(self, net: nn.Module, directory: Path) -> None:
        """config.json and the tokenizer, so that `from_pretrained(directory)` works once model.safetensors lies beside.

        A tokenizer that is learnt from texts, and has not been, is left out.
        """
        save_config(net, directory)
        if self.source is not None or self._tokenizers:
            self.tokenizer().save_pretrained(directory)

    @cached_property
    def _tokenizers(self) -> list["PreTrainedTokenizerBase"]:
        """The tokenizer in use, if any; not a field, for it is no setting."""
        return []

    def _config(self, info: "DataInfo") -> "BertConfig":
        settings = {"num_labels": info.num_classes, "problem_type": None, "attn_implementation": "sdpa"}
        config = self._random_config(**settings) if self.source is None else self.source.config(**settings)
        longest = config.max_position_embeddings
        if info.sequence_length is not None and info.sequence_length > longest:
            reason = f"takes at most {longest} tokens and the dataset gives up to {info.sequence_length}"
            raise InvalidSetting("size", self.size, reason) if self.source is None else self.source.invalid(reason)
        return config

    def _random_config(self, **settings: Any) -> "BertConfig":
        from transformers import BertConfig

        return BertConfig(**SIZES[self.size], **settings)

    def _train_tokenizer(self, texts: Iterable[str] | None) -> "PreTrainedTokenizerBase":
        if texts is None:
            raise ValueError("a BERT of random weights learns its vocabulary from texts; none were given")
        config = self._random_config()
        return train_wordpiece(texts, vocabulary_size=config.vocab_size, max_length=config.max_position_embeddings)


def _network_class(kind: str) -> type[nn.Module]:
    import transformers

    return getattr(transformers, CLASSES[kind])
