"""Parallel text for translation: the data sets, and the shared vocabulary."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from sparsefront.artifacts.content_digest import digest, file_digest, versions
from sparsefront.data.base import DataInfo, Dataset, Division, TokenizerFrom, hold_out, link, local_path
from sparsefront.data.download import build_once, hub_commit, hub_split, hub_split_names
from sparsefront.data.text_files import utf8_text
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sparsefront.data.sentence_pairs import PairData

log = logging.getLogger(__name__)

FILES = {
    "train": ("train",),
    "val": ("val", "valid", "validation", "dev", "newstest2013", "tst2012"),
    "test": ("test", "test_2016_flickr", "test2016", "newstest2014", "tst2013"),
}
HUB_SPLITS = {"train": ("train",), "val": ("validation", "valid", "dev"), "test": ("test",)}
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # in the order of PAD, BOS, EOS, UNKNOWN
FEWEST_TOKENS = 300  # 256 bytes, special tokens and some merges


@settings_class(kw_only=True)
class Translated(Dataset):
    """Settings of parallel text with one translation per sentence.

    Local files have one sentence per line, aligned between the two languages: train.en and train.de, val.* (or valid, dev), and
    test.*. val is used for choices; without such files a part of train is held out, keeping all pairs of a source sentence
    together. The vocabulary is a byte-level BPE of both languages, learned from the training text and cached, unless the
    network brings a tokenizer.

    Attributes:
        path: a folder with such files; None downloads from the Hugging Face hub.
        hub, config, revision: id on the hub, its configuration, and a branch, tag or commit.
        source, target: languages, as in names of files and columns.
        vocabulary: number of tokens shared by both languages, including special ones.
        max_length: maximum number of tokens of a sentence, including its end; longer pairs are not trained on.
        batch_tokens: of a training batch, sources or targets, whichever are more, with padding; None: recipe.batch_size rows.
        beam: beam size in evaluation; 1 is greedy.
        length_penalty: a: hypotheses are ranked by the sum of their log-probabilities / tokens^a.
        valid_fraction: share of train that is held out if there are no val files; 0 = no val.
    """

    elsewhere: ClassVar[frozenset[str]] = Dataset.elsewhere | {"revision"}  # `content` names it for hub data
    of_evaluation: ClassVar[frozenset[str]] = frozenset({"beam", "length_penalty"})
    libraries: ClassVar[tuple[str, ...]] = ("tokenizers",)

    path: str | None = None
    hub: str | None = None
    config: str | None = None
    revision: str = "main"
    source: str = "en"
    target: str = "de"
    vocabulary: Annotated[int, Field(ge=FEWEST_TOKENS, description="tokens")] = 8000
    max_length: Annotated[int, Field(ge=8, le=1000, description="tokens")] = 128
    batch_tokens: PositiveInt | None = 4096
    beam: Annotated[int, Field(ge=1, le=64, description="hypotheses")] = 5
    length_penalty: NonNegativeFloat = 1.0
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of train, where there are no val files")] = 0.02

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise InvalidSetting("target", self.target, "is the language of the source too: name another one")
        if self.batch_tokens is not None and self.batch_tokens < self.max_length:
            allowed = f"holds no sentence of max_length={self.max_length} tokens: give at least as many"
            raise InvalidSetting("batch_tokens", self.batch_tokens, allowed)

    @property
    def grouping(self) -> str:
        return "source-sentences-1"

    @property
    def split_version(self) -> str | None:
        """None if val is a separate split, as on the hub."""
        version = super().split_version
        return None if self.path is None or ("val", self.source) in self.files() else version

    @property
    def info(self) -> DataInfo:
        return DataInfo(
            "translation",
            num_classes=0,
            sequence_length=self.max_length,
            vocabulary=self.vocabulary,
            vocabulary_digest=self.vocabulary_digest,
        )

    @cached_property
    def vocabulary_digest(self) -> str:
        """Digest of everything that the vocabulary depends on."""
        learnt_from = {"content": self.content(), "languages": [self.source, self.target], "tokens": self.vocabulary}
        return digest(learnt_from | {"held_out": self.split_version and [self.split_version, self.valid_fraction]})

    def check(self) -> None:
        if self.path is not None:
            self.files()
        elif self.hub is None:
            raise InvalidSetting("path", None, f"set dataset.path to {self.expected}")

    def content(self) -> dict[str, Any]:
        if self.path is None:
            return {"hub": self.hub, "config": self.config, "revision": self.revision}
        return {f"{split}.{language}": file_digest(file) for (split, language), file in self.files().items()}

    def at_commit(self, cache_dir: Path) -> Self:
        if self.path is not None or self.hub is None:
            return self
        missing = f"set dataset.path to {self.expected}"
        return replace(self, revision=hub_commit(self.hub, self.revision, cache_dir=cache_dir, missing=missing))

    @property
    def expected(self) -> str:
        """Description of the files expected at `path`."""
        return f"a folder with train.{self.source}, train.{self.target}, test.{self.source} and test.{self.target}"

    def files(self) -> dict[tuple[str, str], Path]:
        """(split, language) -> its file; no val files if val is held out of train.

        Raises:
            InvalidSetting: no such folder, or a required file is missing.
        """
        folder = local_path(str(self.path), expected=self.expected)
        by_split = {}
        for split, names in FILES.items():
            for key in ("source", "target"):
                language = getattr(self, key)
                file = next((file for name in names if (file := folder / f"{name}.{language}").is_file()), None)
                if file is not None:
                    by_split[split, language] = file
                elif split != "val":
                    raise self._without(key, folder, split)
        vals = [language for split, language in by_split if split == "val"]
        if len(vals) == 1:
            key = "target" if vals == [self.source] else "source"
            raise self._without(key, folder, "val")
        return by_split

    def _without(self, key: str, folder: Path, split: str) -> InvalidSetting:
        """The error for a folder without a file of a language."""
        names = FILES[split]
        there = sorted({file.suffix[1:] for file in folder.glob("*.*") if file.is_file() and file.stem in names})
        if not there:
            expected_files = " or ".join(f"{name}.{getattr(self, key)}" for name in names)
            return InvalidSetting("path", str(folder), f"has no {expected_files}; set dataset.path to {self.expected}")
        allowed = f"{folder} has no {split} file of this language; there are {', '.join(there)}"
        return InvalidSetting(key, getattr(self, key), allowed)

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "PairData":
        from sparsefront.data.sentence_pairs import PairData

        return PairData(
            self.sentences(),
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            holds_out=self.valid_fraction > 0,
            batch_size=batch_size,
            seed=seed,
            cache_dir=Path(cache_dir),
            tokenizer_from=tokenizer_from,
            num_workers=self.num_workers,
        )

    def sentences(self) -> "Sentences":
        """The text of all splits, read on first use."""
        return Sentences(self)

    def division(self, cache_dir: Path) -> Division:
        return self.sentences().division


def learn_vocabulary(texts: Sequence[str], tokens: int) -> "Tokenizer":
    """Learn a byte-level BPE without unknown characters; deterministic for the same texts in the same order.

    Args:
        tokens: maximum number; fewer if the texts have too few repeated pairs.
    Source: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Sentences:
    """The lines of each split, and which pairs of train are held out."""

    def __init__(self, settings: Translated) -> None:
        self.settings = settings
        self.name = f"{settings.name}-{settings.source}-{settings.target}"
        self._read: dict[str, tuple[list[str], list[str]]] = {}

    def tokenizer(self, cache_dir: Path) -> "Tokenizer":
        """The vocabulary, learned from train on first use and cached in the folder `vocabularies`."""
        from tokenizers import Tokenizer

        key = {"of": self.settings.vocabulary_digest, "format": 1, "versions": versions("tokenizers")}

        def make(file: Path) -> None:
            log.info("data: learning a vocabulary of %d tokens from train", self.settings.vocabulary)
            sources, targets = self.pairs("train")
            learn_vocabulary([*sources, *targets], self.settings.vocabulary).save(str(file))

        file = cache_dir / "vocabularies" / f"{self.name}-{digest(key)}.json"
        return Tokenizer.from_file(str(build_once(file, make)))

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Aligned sources and targets of a split, stripped of surrounding whitespace.

        Raises:
            InvalidSetting: files of different length, an empty line, invalid UTF-8, or no such split.
        """
        if split == "test" or self.own_val:
            return self._whole(split)
        rows = self.division.part(split)
        sources, targets = self._whole("train")
        return [sources[row] for row in rows], [targets[row] for row in rows]

    @cached_property
    def own_val(self) -> bool:
        """Whether val is a separate split, so that nothing is held out of train."""
        settings = self.settings
        if settings.path is not None:
            return ("val", settings.source) in settings.files()
        return self._hub_split("val") is not None

    @cached_property
    def division(self) -> Division:
        """See `Dataset.division`."""
        settings = self.settings
        if self.own_val:
            raise InvalidSetting("name", settings.name, "has a val split of its own: nothing of train is held out")
        sources, _ = self._whole("train")
        groups = None if settings.split_by == "rows" else link((source,) for source in sources)
        strata = np.zeros(len(sources), dtype=np.int64)
        train, val = hold_out(strata, settings.valid_fraction, groups=groups, path=settings.path)
        return Division(train, val, groups, len(sources))

    def _whole(self, split: str) -> tuple[list[str], list[str]]:
        if split not in self._read:
            settings = self.settings
            if settings.path is not None:
                files = settings.files()
                texts = [_lines(files[split, language]) for language in (settings.source, settings.target)]
                names = [files[split, language].name for language in (settings.source, settings.target)]
            else:
                texts, names = self._from_hub(split), [f"{split}.{settings.source}", f"{split}.{settings.target}"]
            self._require_pairs(split, texts, names)
            self._read[split] = texts[0], texts[1]
        return self._read[split]

    def _require_pairs(self, split: str, texts: list[list[str]], names: list[str]) -> None:
        place = ("path", str(self.settings.path)) if self.settings.path else ("hub", str(self.settings.hub))
        counts = [len(lines) for lines in texts]
        if counts[0] != counts[1]:
            allowed = f"{names[0]} has {counts[0]} lines and {names[1]} has {counts[1]}: they must be in step"
            raise InvalidSetting(*place, allowed)
        if not counts[0]:
            raise InvalidSetting(*place, f"{names[0]} has no lines")
        for name, lines in zip(names, texts, strict=True):
            if "" in lines:
                empty = f"line {lines.index('') + 1} of {name} is empty ({lines.count('')} are)"
                raise InvalidSetting(*place, f"{empty}: take such pairs out of both files")

    def _from_hub(self, split: str) -> list[list[str]]:
        settings = self.settings
        name = self._hub_split(split)
        if name is None:
            raise InvalidSetting("hub", settings.hub, f"has no split {' or '.join(HUB_SPLITS[split])}")
        rows = hub_split(
            str(settings.hub), config=settings.config, revision=settings.revision, split=name, missing=self._missing
        )
        languages = {"source": settings.source, "target": settings.target}
        if "translation" in rows.column_names:
            rows = rows.select_columns(["translation"]).flatten()
            rows = rows.rename_columns({column: column.partition(".")[2] for column in rows.column_names})
        for key, language in languages.items():
            if language not in rows.column_names:
                raise InvalidSetting(key, language, f"{settings.hub} has {', '.join(rows.column_names)}")
        # None if there is no translation
        return [[(text or "").strip() for text in rows[language]] for language in languages.values()]

    def _hub_split(self, split: str) -> str | None:
        there = self._hub_splits
        return next((name for name in HUB_SPLITS[split] if name in there), None)

    @cached_property
    def _hub_splits(self) -> list[str]:
        settings = self.settings
        return hub_split_names(
            str(settings.hub), config=settings.config, revision=settings.revision, missing=self._missing
        )

    @property
    def _missing(self) -> str:
        return f"set dataset.path to {self.settings.expected}"

    def key(self) -> dict[str, Any]:
        """What the pairs of all splits depend on, JSON-able."""
        settings = self.settings
        return json.loads(json.dumps({"vocabulary": settings.vocabulary_digest, "content": settings.content()}))


def _lines(file: Path) -> list[str]:
    """Split at line ends only: other Unicode separators occur inside sentences."""
    with utf8_text(file) as lines:
        return [line.strip() for line in lines]


@settings_class(kw_only=True)
class Multi30k(Translated):
    """29,000 English image captions with German translations, 1,014 for choices; test 2016: 1,000 for reporting.

    Source: Elliott et al., "Multi30K: Multilingual English-German Image Descriptions", 2016.
    """

    name: ClassVar[str] = "multi30k"

    hub: str | None = "bentrevett/multi30k"


@settings_class(kw_only=True)
class Tatoeba(Translated):
    """Short everyday sentences translated by volunteers, from a local folder. Source: tatoeba.org."""

    name: ClassVar[str] = "tatoeba"

    target: str = "fr"


@settings_class(kw_only=True)
class Wmt14(Translated):
    """News: 4.5 million English-German pairs, newstest2013 for choices, newstest2014 for reporting.

    Source: Bojar et al., "Findings of the 2014 Workshop on Statistical Machine Translation", 2014.
    """

    name: ClassVar[str] = "wmt14"

    hub: str | None = "wmt/wmt14"
    config: str | None = "de-en"
    vocabulary: Annotated[int, Field(ge=FEWEST_TOKENS, description="tokens")] = 37000


@settings_class(kw_only=True)
class Iwslt15(Translated):
    """Subtitles of talks: 133,000 English-Vietnamese pairs, tst2012 for choices, tst2013 for reporting.

    Source: Cettolo et al., "The IWSLT 2015 Evaluation Campaign", 2015.
    """

    name: ClassVar[str] = "iwslt15"

    hub: str | None = "thainq107/iwslt2015-en-vi"
    target: str = "vi"
