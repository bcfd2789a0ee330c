"""What every data set answers, the facts that shape a network, and the part of train that is held out for choices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

# What a network has to know of the data before it is built.


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that shape a network; known without reading the data.

    Attributes:
        kind: the task that the data poses: `image_classification`, `sequence_classification`, `extractive_qa`, `causal_lm` or
            `translation`.
        num_classes: outputs of the head; 1 means regression, 2 for `extractive_qa` (start and end), 0 for `causal_lm` and
            `translation`, whose classes are the tokens.
        image_size: side of the square images in pixels; None for text.
        channels: color channels of the images; None for text.
        sequence_length: the most tokens that one input, or one target, may have; None for images.
        class_names: one per class, in the order of the class numbers; empty where the data names none.
        vocabulary: tokens that both languages of a translation share; None elsewhere, where the model brings the vocabulary.
        vocabulary_digest: of what that vocabulary was learnt from: networks of another one cannot be used.

    Raises:
        InvalidSetting: names, but not one per class.
    """

    kind: str
    num_classes: int
    image_size: int | None = None
    channels: int | None = None
    sequence_length: int | None = None
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None
    vocabulary_digest: str | None = None

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.num_classes:
            allowed = f"there are {self.num_classes} classes: name each of them, or none"
            raise InvalidSetting("class_names", list(self.class_names), allowed)


# The part of train on which choices are made.

SPLIT_SEED = 0
"""Fixed, and not the run's seed: runs with different seeds are compared on the same held-out rows."""
BY_ROWS = "rows"
"""The version of a split that keeps nothing together, as every split was before there were groups."""
DROPPED = -1
"""The group of rows that are neither trained on nor held out."""


@dataclass(frozen=True, eq=False)
class Division:
    """Which rows of train are trained on, and which are held out.

    Attributes:
        train, val: int64, row numbers, ascending.
        groups: int64 [rows], the number of each row's group, `DROPPED` of none; None where rows are divided one by one.
        rows: of all that was read.
        test: int64, rows that are reported on where the data set takes them from its train files.
    """

    train: np.ndarray
    val: np.ndarray
    groups: np.ndarray | None
    rows: int
    test: np.ndarray = field(default_factory=lambda: np.arange(0))

    def part(self, split: str) -> np.ndarray:
        """The rows of `train` or `val`."""
        return {"train": self.train, "val": self.val}[split]

    @property
    def dropped(self) -> np.ndarray:
        """Rows that are of no part, ascending."""
        return np.setdiff1d(np.arange(self.rows), np.concatenate([self.train, self.val, self.test]))


def linked(keys: Iterable[Iterable[Hashable]]) -> np.ndarray:
    """Groups of rows: two rows that share a key are of one group, and so are those that a chain of such rows joins.

    Args:
        keys: of each row; a row without any is of no group.
    Returns:
        int64 [rows]: the first row of each row's group; `DROPPED` for a row of none.
    """
    first_with: dict[Hashable, int] = {}
    parents: list[int] = []

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    in_none = []
    for row, own in enumerate(keys):
        parents.append(row)
        places = {first_with.setdefault(key, row) for key in own}
        if not places:
            in_none.append(row)
        roots = {root(place) for place in (*places, row)}
        for other in roots:
            parents[other] = min(roots)
    groups = np.asarray([root(row) for row in range(len(parents))], dtype=np.int64)
    groups[in_none] = DROPPED
    return groups


def held_out(
    strata: Sequence[int] | np.ndarray,
    fraction: float,
    *,
    groups: np.ndarray | None = None,
    path: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows in two: whole groups, each stratum as nearly in the same proportion as the groups allow.

    Args:
        strata: one number per row, its class; rows of one number are divided among themselves.
        fraction: share of the rows that is held out, in [0, 1); 0 holds nothing out, and drops nothing.
        groups: int64 [rows], rows of one number stay together, and those of `DROPPED` are left out; None divides row by row.
        path: where the rows come from, for the message.
    Returns:
        Row numbers (int64, ascending) that stay, and those held out; both hold at least one row, but for a fraction of 0.
    Raises:
        InvalidSetting: fewer than two rows, or all of one group; names `path`.
    """
    strata = np.asarray(strata)
    if len(strata) < 2:
        allowed = f"holds {len(strata)} rows to train on and to hold out: at least 2 are needed"
        raise InvalidSetting("path", path, allowed)
    if fraction == 0:
        return np.arange(len(strata)), np.arange(0)
    groups = np.arange(len(strata)) if groups is None else groups
    kept = np.flatnonzero(groups != DROPPED)
    names, members = np.unique(groups[kept], return_inverse=True)
    if len(names) < 2:
        what = "belong together in one group" if len(names) else "are of no group"
        allowed = f"its {len(strata)} rows {what}, so none can be held out; dataset.split_by=rows divides row by row"
        raise InvalidSetting("path", path, allowed)
    sizes, strata = np.bincount(members), np.unique(strata[kept], return_inverse=True)[1]
    # NumPy keeps the stream of RandomState as it is for ever; those of newer generators may change with a version.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(names))
    # Large groups first, then by their strata, and in the shuffled order where these agree: groups picked at even distances
    # are a random sample of each size and stratum, and small groups at the end fill up what large ones leave.
    order = shuffled[np.lexsort((np.bincount(members, weights=strata)[shuffled], -sizes[shuffled]))]
    several = order[sizes[order] > 1]
    held = _fairest(_counts(several, members, strata), fraction)
    chosen = several[held].tolist()
    seen, held_rows = int(sizes[several].sum()), int(sizes[chosen].sum())
    for single in order[len(several) :].tolist():
        seen += 1
        if seen * fraction + 0.5 >= held_rows + 1:
            chosen.append(single)
            held_rows += 1
    if not chosen:
        chosen = [shuffled[np.argmin(sizes[shuffled])]]
    is_held = np.isin(members, chosen)
    return kept[~is_held], kept[is_held]


def _counts(groups: np.ndarray, members: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Rows of each stratum in each of these groups: float64 [groups, strata]."""
    place = np.full(members.max() + 1, -1)
    place[groups] = np.arange(len(groups))
    counts = np.zeros((len(groups), strata.max() + 1))
    inside = place[members] >= 0
    np.add.at(counts, (place[members][inside], strata[inside]), 1)
    return counts


def _fairest(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Which groups to hold out, going through them once: one that brings the strata, and the sum, nearer to their shares.

    Args:
        counts: [groups, strata].
    Returns:
        bool [groups].
    """
    held, lacking = np.zeros(len(counts), dtype=bool), np.zeros(counts.shape[1])
    for place, group in enumerate(counts):
        lacking += fraction * group
        size = group.sum()
        held[place] = 2 * (lacking @ group + lacking.sum() * size) >= group @ group + size**2
        if held[place]:
            lacking -= group
    return held


TokenizerFrom = Callable[[Iterable[str]], Any]
"""Gives a fast tokenizer; the texts are read only if it has to learn a vocabulary from them."""


@settings_class(kw_only=True)
class Dataset(ABC):
    """Settings of one data set.

    Attributes:
        num_workers: processes that prepare batches; 0 = the training process itself. The order does not depend on it.
        valid_fraction: share of train, in [0, 0.5], that is never trained on and on which choices are made. Which
            rows it is never changes: neither with the run's seed nor with the machine. 0 trains on all of train, as many
            papers do; then nothing can be chosen.
        split_by: `groups` holds out rows that belong together (see `grouping`) together; `rows` holds out row by row, as
            earlier versions did; `auto` takes groups where the data set declares some.
    """

    name: ClassVar[str]
    elsewhere: ClassVar[frozenset[str]] = frozenset({"path", "num_workers", "split_by"})
    """Settings that do not change what is trained on: where it lies and how fast it is read; `split_version` does."""
    of_evaluation: ClassVar[frozenset[str]] = frozenset()
    """Settings that only say how networks are evaluated: dense weights are the same whatever they are."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that decode the files: their versions are part of the keys, as those of torch and transformers are."""

    val_of_train: ClassVar[bool] = True
    """Whether what is held out is of a split that is there to train on, so that a finished checkpoint may have seen it."""

    num_workers: NonNegativeInt = 0
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of train")] = 0.1
    split_by: Literal["auto", "groups", "rows"] = "auto"

    @property
    def grouping(self) -> str | None:
        """What `split_by=groups` keeps together, with the version of the rule: `duplicates-1`; None: no groups are declared."""
        return None

    @property
    def split_version(self) -> str | None:
        """The rule that decides which rows are held out: `grouping`, or `rows`; None where nothing is held out.

        Raises:
            InvalidSetting: groups are asked for, and the data set declares none.
        """
        if self.split_by == "groups" and self.grouping is None:
            allowed = f"{self.name} declares no groups of rows that belong together; auto or rows"
            raise InvalidSetting("split_by", self.split_by, allowed)
        if self.valid_fraction == 0:
            return None
        return BY_ROWS if self.split_by == "rows" else self.grouping or BY_ROWS

    @property
    def keeps_groups(self) -> bool:
        """Whether whole groups are held out."""
        return self.split_version not in (None, BY_ROWS)

    def division(self, cache_dir: Path) -> Division:
        """Which rows of train are held out, numbered from 0 as the files hold them; reads the data.

        Args:
            cache_dir: as in `data_module`.
        Raises:
            InvalidSetting: the data set does not tell, or has its own held-out part.
        """
        raise InvalidSetting("name", self.name, "does not tell which of its rows are held out")

    @property
    @abstractmethod
    def info(self) -> DataInfo:
        """The facts that shape a network. Needs the files only where they decide, as the classes of a folder do."""

    @abstractmethod
    def check(self) -> None:
        """Raise for what can be seen to fail later, without the network and without reading much.

        Raises:
            InvalidSetting: a path that is missing or not laid out as expected, with what is expected.
        """

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """What identifies the raw data, JSON-able: digests of local files, or name and revision of a hosted copy."""

    @abstractmethod
    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "LightningDataModule":
        """The loaders: `train` shuffled by `seed`, `val` = the held-out part of train, `test` for reporting only.

        Args:
            batch_size: rows of one batch, in all three loaders.
            seed: decides order and augmentation of train; the same seed gives the same batches, run after run.
            cache_dir: where downloads and tokenized text are kept for the next run.
            tokenizer_from: needed by text, ignored by images.
        """

    def at_commit(self, cache_dir: Path) -> Self:
        """These settings with a branch or tag of a hub replaced by the commit that it stands for; others as they are.

        Args:
            cache_dir: as in `data_module`.
        Raises:
            InvalidSetting: no such revision, or no host that has it can be reached.
        """
        return self

    def fingerprint(self) -> dict[str, Any]:
        """Everything that the batches depend on apart from batch size, seed and tokenizer; JSON-able."""
        apart = self.elsewhere | self.of_evaluation
        settings = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in apart}
        return {"name": self.name, "content": self.content(), "settings": settings, "split": self.split_version}


def local_path(path: str, *, expected: str, key: str = "path") -> Path:
    """The path with `~` filled in.

    Raises:
        InvalidSetting: nothing is there; says what to set.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise InvalidSetting(key, path, f"does not exist; set dataset.{key} to {expected}")
    return found
