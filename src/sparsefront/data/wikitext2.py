"""WikiText-2: Wikipedia articles as windows of tokens."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.data.base import BY_ROWS, DataInfo, Dataset, Division, TokenizerFrom, local_path
from sparsefront.data.text_files import utf8_text
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sparsefront.data.text import EncodedText
    from sparsefront.data.text_windows import WindowData

_JOINED = re.compile(r" @([-,.])@ ")
_UNKNOWN = re.compile(r" ?<unk>")
_BEFORE = re.compile(r" ([,.;:!?)\]%]|'s\b|n't\b|'(?:re|ve|ll|d|m)\b)")
_BEHIND = re.compile(r"([(\[$£]) ")
_QUOTED = re.compile(r'" ([^"\n]*?) "')
_HEADING = re.compile(r"^ = [^=\n]+ = ?$", re.MULTILINE)


def detokenize(text: str) -> str:
    """Convert WikiText's tokenized form to plain text: `1 @,@ 000` -> `1,000`, `film , it 's` -> `film, it's`.

    The words replaced by `<unk>` are unknown and dropped.
    """
    text = _UNKNOWN.sub("", _JOINED.sub(r"\1", text))
    text = _BEHIND.sub(r"\1", _BEFORE.sub(r"\1", text))
    return _QUOTED.sub(r'"\1"', text)


def divide(text: str, held_out: float, *, articles: bool = True) -> tuple[str, str]:
    """Cut a text before the article heading (else at the line end) that is closest to the requested share.

    Args:
        held_out: share of the second part, in [0, 1); 0 holds nothing out.
        articles: False cuts at lines.
    """
    if held_out == 0:
        return text, ""
    places = [boundary.start() for boundary in (_HEADING if articles else re.compile("\n")).finditer(text)]
    places = [place for place in places if 0 < place < len(text)] or [len(text) // 2]
    cut = min(places, key=lambda place: abs(place - (1 - held_out) * len(text)))
    return text[:cut], text[cut:]


TEST, VALID = ("wiki.test.raw",), ("wiki.valid.raw", "wiki.valid.tokens")
EXPECTED = f"a folder with {TEST[0]} and {' or '.join(VALID)}"


@settings_class(kw_only=True)
class Wikitext2(Dataset):
    """The test split of raw WikiText-2, evaluated completely in windows. Its valid split is divided into `train`, for
    calibration and recovery, and `val`, for choices; there is no train file.

    A tokenized valid file (`wiki.valid.tokens`) is detokenized; words lost as `<unk>` are dropped, so its perplexity is not
    comparable with that of test. The test file is not changed. Each split is tokenized as one text, with the tokenizer's
    special tokens at its beginning.
    Source: Merity et al., "Pointer Sentinel Mixture Models", 2016.

    Attributes:
        path: a folder with wiki.test.raw, and wiki.valid.raw or wiki.valid.tokens.
        train_text: a text file for calibration and recovery, instead of the first part of valid.
        sequence_length: tokens per window.
        stride: tokens between the starts of two windows of val and test; None = sequence_length. With smaller strides, each
            token is scored once, by the window that gives it the most context.
        valid_fraction: share of valid that is `val`, cut at an article.
    """

    name: ClassVar[str] = "wikitext2"
    elsewhere: ClassVar[frozenset[str]] = Dataset.elsewhere | {"train_text"}
    libraries: ClassVar[tuple[str, ...]] = ("tokenizers",)
    val_of_train: ClassVar[bool] = False

    path: str | None = None
    train_text: str | None = None
    sequence_length: Annotated[int, Field(ge=8, description="tokens")] = 1024
    stride: PositiveInt | None = None
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of valid")] = 0.5

    def __post_init__(self) -> None:
        if self.stride is not None and self.stride > self.sequence_length:
            allowed = f"at most sequence_length={self.sequence_length}: tokens between two windows would be left out"
            raise InvalidSetting("stride", self.stride, allowed)

    @property
    def grouping(self) -> str:
        return "wikitext-articles-1"

    @property
    def info(self) -> DataInfo:
        return DataInfo("causal_lm", num_classes=0, sequence_length=self.sequence_length)

    def check(self) -> None:
        for split, file in self.files().items():
            if file.stat().st_size < self.sequence_length:  # a token has at least one byte
                allowed = f"{split} ({file.name}) has {file.stat().st_size} bytes, less than one window of tokens"
                raise InvalidSetting("sequence_length", self.sequence_length, allowed)

    def content(self) -> dict[str, Any]:
        return {split: file_digest(file) for split, file in self.files().items()}

    def files(self) -> dict[str, Path]:
        """The file of each split.

        Raises:
            InvalidSetting: one is missing.
        """
        if self.path is None:
            raise InvalidSetting("path", None, f"set dataset.path to {EXPECTED}")
        folder = local_path(self.path, expected=EXPECTED)
        test, valid = (self._file(folder, names) for names in (TEST, VALID))
        train = valid
        if self.train_text is not None:
            train = local_path(self.train_text, expected="a text file", key="train_text")
            if not train.is_file():
                raise InvalidSetting("train_text", self.train_text, "is no file: set dataset.train_text to a text file")
        return {"train": train, "val": valid, "test": test}

    def _file(self, folder: Path, names: tuple[str, ...]) -> Path:
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            raise InvalidSetting("path", self.path, f"has no {' or '.join(names)}; set dataset.path to {EXPECTED}")
        return file

    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "WindowData":
        from sparsefront.data.text_windows import WindowData

        return WindowData(
            WikitextSource(self),
            length=self.sequence_length,
            stride=self.stride or self.sequence_length,
            tokenizer_from=tokenizer_from,
            cache_dir=Path(cache_dir),
            batch_size=batch_size,
            seed=seed,
            holds_out=self.valid_fraction > 0,
            num_workers=self.num_workers,
        )


class WikitextSource:
    """The text of each split, read on first use."""

    name = "wikitext2"

    def __init__(self, settings: Wikitext2) -> None:
        self.settings = settings

    def label(self, split: str) -> str:
        """The split, with its file."""
        return f"{split} ({self.settings.files()[split].name})"

    @property
    def division(self) -> Division:
        """Not supported: a text is cut in two, not divided by rows."""
        raise InvalidSetting("name", self.name, "holds a part of its text out, and no rows")

    def key(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "content": settings.content(),
            "own_train": settings.train_text is not None,
            "valid_fraction": settings.valid_fraction,
            "split": settings.split_version,
        }

    def text(self, split: str) -> str:
        """The whole text of a split.

        Raises:
            InvalidSetting: it is not UTF-8 text.
        """
        settings, file = self.settings, self.settings.files()[split]
        key = "train_text" if split == "train" and settings.train_text is not None else "path"
        with utf8_text(file, newline=None, key=key) as stream:  # normalizes line ends, which Git may have converted
            text = stream.read()
        if split == "test" or (split == "train" and settings.train_text is not None):
            return text
        if file.suffix == ".tokens":
            text = detokenize(text)
        parts = divide(text, settings.valid_fraction, articles=settings.split_version != BY_ROWS)
        return parts[split == "val"]

    def texts(self) -> Iterator[str]:
        yield self.text("train")

    def encode(self, split: str, tokenizer: "PreTrainedTokenizerFast") -> "EncodedText":
        """The split as one row."""
        from sparsefront.data.text_windows import one_row

        return one_row(self.text(split), tokenizer)
