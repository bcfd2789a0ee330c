"""The data set interface, the facts that shape a network, and the hold-out of a validation part from train."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

# What a network must know of the data before it is built.


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that shape a network, known without reading the data.

    Attributes:
        kind: the task: `image_classification`, `sequence_classification`, `extractive_qa`, `causal_lm` or `translation`.
        num_classes: outputs of the head; 1 for regression, 2 for `extractive_qa` (start and end), 0 for `causal_lm` and
            `translation`, whose classes are the tokens.
        image_size: side of the square images in pixels; None for text.
        channels: color channels of the images; None for text.
        sequence_length: maximum number of tokens of an input or a target; None for images.
        class_names: one per class, in class order; empty if the data has none.
        vocabulary: number of tokens shared by both languages of a translation; None if the model brings the vocabulary.
        vocabulary_digest: digest of the texts that vocabulary was learned from: networks with another one are unusable.

    Raises:
        InvalidSetting: the number of names differs from the number of classes.
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


SPLIT_SEED = 0
"""Fixed, not the run's seed: runs with different seeds are compared on the same held-out rows."""
BY_ROWS = "rows"
"""Version of a split that keeps no groups together, as all splits did before groups existed."""
DROPPED = -1
"""Group of rows that are neither trained on nor held out."""


@dataclass(frozen=True, eq=False)
class Division:
    """The division of train into trained and held-out rows.

    Attributes:
        train, val: int64 row indices, ascending.
        groups: int64 [rows], group of each row, or `DROPPED`; None if rows are divided individually.
        rows: number of all rows read.
        test: int64, reporting rows for data sets that take them from their train files.
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
        """Rows that belong to no part, ascending."""
        return np.setdiff1d(np.arange(self.rows), np.concatenate([self.train, self.val, self.test]))


def link(keys: Iterable[Iterable[Hashable]]) -> np.ndarray:
    """Group rows that are connected by shared keys, directly or through other rows.

    Args:
        keys: of each row; rows without keys are in no group.
    Returns:
        int64 [rows]: the first row of each row's group, or `DROPPED`.
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


def hold_out(
    strata: Sequence[int] | np.ndarray, fraction: float, *, groups: np.ndarray | None = None, path: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows in two by whole groups, keeping the proportions of the strata as far as the groups allow.

    Args:
        strata: class of each row; rows of each class are divided separately.
        fraction: share of rows to hold out, in [0, 1); 0 holds nothing out and drops nothing.
        groups: int64 [rows]; rows with the same number stay together, and `DROPPED` ones are left out; None divides row by
            row.
        path: source of the rows, for the message.
    Returns:
        Row indices (int64, ascending) that stay, and those held out; both have at least one row, unless fraction is 0.
    Raises:
        InvalidSetting: fewer than two rows, or all in one group; names `path`.
    """
    strata = np.asarray(strata)
    if len(strata) < 2:
        allowed = f"holds {len(strata)} rows to train on and to hold out: at least 2 are needed"
        raise InvalidSetting("path", path, allowed)
    if fraction == 0:
        return np.arange(len(strata)), np.arange(0)
    groups = np.arange(len(strata)) if groups is None else groups
    rows = np.flatnonzero(groups != DROPPED)
    names, members = np.unique(groups[rows], return_inverse=True)
    if len(names) < 2:
        what = "belong together in one group" if len(names) else "are of no group"
        allowed = f"its {len(strata)} rows {what}, so none can be held out; dataset.split_by=rows divides row by row"
        raise InvalidSetting("path", path, allowed)
    sizes, strata = np.bincount(members), np.unique(strata[rows], return_inverse=True)[1]
    # NumPy guarantees the stream of RandomState forever; newer generators may change between versions.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(names))
    # Sort by size (largest first), then stratum, then shuffled order: picking groups at regular intervals then samples every
    # size and stratum evenly, and small groups at the end correct for large ones.
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
    return rows[~is_held], rows[is_held]


def _counts(groups: np.ndarray, members: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Number of rows of each stratum in each of these groups: float64 [groups, strata]."""
    place = np.full(members.max() + 1, -1)
    place[groups] = np.arange(len(groups))
    counts = np.zeros((len(groups), strata.max() + 1))
    inside = place[members] >= 0
    np.add.at(counts, (place[members][inside], strata[inside]), 1)
    return counts


def _fairest(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Decide for each group in turn whether to hold it out: if that brings the strata, and the sum, closer to their shares.

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
"""Returns a fast tokenizer; reads the texts only if it learns a vocabulary from them."""


@settings_class(kw_only=True)
class Dataset(ABC):
    """Settings of one data set.

    Attributes:
        num_workers: loader processes; 0 = load in the training process. The order does not depend on it.
        valid_fraction: share of train, in [0, 0.5], that is held out for choices and never trained on. The rows do not
            depend on the run's seed or the machine. 0 trains on all of train, as many papers do; then nothing can be chosen.
        split_by: `groups` holds out related rows (see `grouping`) together; `rows` holds out row by row, as earlier versions
            did; `auto` uses groups if the data set defines them.
    """

    name: ClassVar[str]
    elsewhere: ClassVar[frozenset[str]] = frozenset({"path", "num_workers", "split_by"})
    """Settings that do not change the training data, only its location and speed; see `split_version` for `split_by`."""
    of_evaluation: ClassVar[frozenset[str]] = frozenset()
    """Settings of evaluation only, which do not affect dense weights."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that decode the files; their versions are part of cache keys, like those of torch and transformers."""

    val_of_train: ClassVar[bool] = True
    """Whether the held-out rows come from a training split, so that a pretrained checkpoint may have seen them."""

    num_workers: Annotated[int, Field(ge=0, le=1024, description="processes")] = 0
    valid_fraction: Annotated[float, Field(ge=0, le=0.5, description="of train")] = 0.1
    split_by: Literal["auto", "groups", "rows"] = "auto"

    @property
    def grouping(self) -> str | None:
        """What `split_by=groups` keeps together, with the version of the rule: `duplicates-1`; None: no groups."""
        return None

    @property
    def split_version(self) -> str | None:
        """The rule that decides which rows are held out: `grouping`, or `rows`; None if nothing is held out.

        Raises:
            InvalidSetting: groups are requested, but the data set has none.
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
        """Which rows of train are held out, numbered from 0 in file order; reads the data.

        Args:
            cache_dir: as in `data_module`.
        Raises:
            InvalidSetting: not supported, or the data set has its own held-out part.
        """
        raise InvalidSetting("name", self.name, "does not tell which of its rows are held out")

    @property
    @abstractmethod
    def info(self) -> DataInfo:
        """The facts that shape a network. Reads files only if necessary, such as for the classes of a folder."""

    @abstractmethod
    def check(self) -> None:
        """Fail early on what can be checked without the network and without reading much.

        Raises:
            InvalidSetting: a path is missing or has an unexpected layout; says what is expected.
        """

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Identifies the raw data, JSON-able: digests of local files, or name and revision of a hosted copy."""

    @abstractmethod
    def data_module(
        self, *, batch_size: int, seed: int, cache_dir: Path, tokenizer_from: TokenizerFrom | None = None
    ) -> "LightningDataModule":
        """Create the loaders: `train`, shuffled by `seed`; `val`, the held-out part of train; `test`, for reporting only.

        Args:
            batch_size: rows per batch in all three loaders.
            seed: of order and augmentation of train; the same seed gives the same batches in every run.
            cache_dir: for downloads and tokenized text.
            tokenizer_from: required for text, ignored for images.
        """

    def at_commit(self, cache_dir: Path) -> Self:
        """These settings with a hub branch or tag resolved to its commit; unchanged for other data.

        Args:
            cache_dir: as in `data_module`.
        Raises:
            InvalidSetting: no such revision, or no host that has it can be reached.
        """
        return self

    def drop_unlabeled(self) -> Self:
        """These settings without the rows of train that have no label: only a teacher's loss takes those, so that stages other
        than the recovery read these settings' rows.
        """
        return self

    def fingerprint(self) -> dict[str, Any]:
        """Everything that the batches depend on except batch size, seed and tokenizer; JSON-able."""
        apart = self.elsewhere | self.of_evaluation
        settings = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in apart}
        return {"name": self.name, "content": self.content(), "settings": settings, "split": self.split_version}


def local_path(path: str, *, expected: str, key: str = "path") -> Path:
    """Expand `~` in a path and check that it exists.

    Raises:
        InvalidSetting: it does not; says what to set.
    """
    expanded = Path(path).expanduser()
    if not expanded.exists():
        raise InvalidSetting(key, path, f"does not exist; set dataset.{key} to {expected}")
    return expanded
