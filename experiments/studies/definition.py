"""What a study is made of: its file, `study.yaml`, becomes points, those that matter most first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

EXPERIMENTS = Path(__file__).resolve().parents[1]
RESULTS = Path("results/studies")  # of a new call; EXPERIMENTS holds what is published
STUDY_FILE = "study.yaml"
DENSE = "dense"


@dataclass(frozen=True)
class Network:
    """A model on a data set.

    Args:
        title: in words.
        overrides: of run.py, for all points; `latency`: more of them, where latencies are taken.
        folders: key of the configuration -> the option of the driver that names its folder.
    """

    title: str
    overrides: tuple[str, ...]
    folders: Mapping[str, str] = field(default_factory=dict)
    latency: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Args:
        overrides: of run.py.
        paper: what the source has, in the order of the table's columns; None where it has nothing.
        headline: columns of which this line comes first and is repeated with every seed of `headline_seeds`.
        note: stands beside it on the page.
    """

    overrides: tuple[str, ...] = ()
    paper: tuple[Any, ...] = ()
    headline: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Crossing:
    """Where a line of a table of levels has lost so much against its dense network, on val.

    Args:
        points: lost, of the metric in per cent.
        retrainings: of each level beside the crossing, all of one dense network; the one of the table counts.
        networks: whose crossing is read; empty: all.
    """

    points: float
    retrainings: int
    networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.points <= 0:
            raise ValueError(f"crossing: points={self.points}: must be above 0")
        if self.retrainings < 1:
            raise ValueError(f"crossing: retrainings={self.retrainings}: must be 1 or more")


@dataclass(frozen=True)
class Table:
    """Lines by columns, a point in each cell.

    Args:
        columns: label -> overrides of run.py; a table of one column has the label "".
        paper: what the source's numbers are of; "" where there are none.
        crossing: of levels; the page says at which sparsity each line is there, by retrainings of the levels beside it.
        networks: those of the study that it is of; empty: all.
    """

    title: str
    columns: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, Row]
    paper: str = ""
    crossing: Crossing | None = None
    networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.crossing and not self.levels:
            raise ValueError(f"{self.title}: crossing: its columns must set `sparsity` alone, and be two or more")

    def crossing_of(self, network: str) -> Crossing | None:
        """The crossing, where it is read of that network."""
        of = self.crossing.networks if self.crossing else ()
        return self.crossing if not of or network in of else None

    @property
    def levels(self) -> bool:
        """Whether its columns are sparsities of one network, and nothing else differs between them."""
        settings = [[text.partition("=")[0] for text in overrides] for overrides in self.columns.values()]
        return len(settings) > 1 and all(names == ["sparsity"] for names in settings)


@dataclass(frozen=True)
class Study:
    """Everything that is re-made into `folder`.

    Args:
        about: the page's first paragraph: three sentences with the question and the answer.
        notes: what stands below the tables, in Markdown: one subject a bullet.
        headlines_only: networks of which nothing but the headlines is made.
        overrides: of run.py, for all points; the preset among them.
        targets: network -> column -> what the line that is best on val must reach on test, in per cent.
        products: what the source has beside the products that `products.csv` holds; "" where there are none.
        seed_key: what a seed is of: `seed` (dense network and all after it) or `recovery.seed` (of one dense network).
    """

    name: str
    title: str
    about: str
    networks: tuple[str, ...]
    tables: tuple[Table, ...]
    headlines_only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    headline_seeds: tuple[int, ...] = (0, 1, 2)
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    products: str = ""
    seed_key: str = "seed"
    notes: str = ""

    def __post_init__(self) -> None:
        if self.seed_key == "seed" and any(table.crossing for table in self.tables):
            raise ValueError(f"{self.name}: crossing: retrainings of one dense network need seed_key: recovery.seed")

    @property
    def folder(self) -> Path:
        return EXPERIMENTS / self.name

    @property
    def first_seed(self) -> int:
        """That of every cell."""
        return self.headline_seeds[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All that a point may have, the first one first: those of headlines, and of retrainings at a crossing."""
        at_crossings = (self.seeds_of(table.crossing) for table in self.tables if table.crossing)
        return tuple(dict.fromkeys(chain(self.headline_seeds, *at_crossings)))

    def seeds_of(self, crossing: Crossing) -> tuple[int, ...]:
        """Of the retrainings of a level beside it."""
        return tuple(range(self.first_seed, self.first_seed + crossing.retrainings))


@dataclass(frozen=True)
class Point:
    """One cell of a table, of one network and seed; what does not tell points apart follows from the rest.

    Args:
        overrides: of run.py.
        turn: 0 of headlines, 1 of what is left, 2 of further seeds: in this order they are worked on.
    """

    study: str
    network: str
    table: str
    row: str
    column: str
    seed: int
    overrides: tuple[str, ...] = field(compare=False, default=())
    turn: int = field(compare=False, default=0)

    def __str__(self) -> str:
        cell = " · ".join(part for part in (self.table, self.row, self.column) if part)
        return f"{self.study} {self.network}: {cell}, seed {self.seed}"


@cache
def networks() -> dict[str, Network]:
    """Those that studies may name."""
    content = yaml.safe_load((Path(__file__).with_name("networks.yaml")).read_text(encoding="utf-8"))
    return {name: Network(**_tuples(values)) for name, values in content.items()}


def study_names() -> list[str]:
    """The folders beside this one that hold a study."""
    return sorted(path.parent.name for path in EXPERIMENTS.glob(f"*/{STUDY_FILE}"))


def read_study(name: str) -> Study:
    """A study from its file."""
    content = _tuples(yaml.safe_load((EXPERIMENTS / name / STUDY_FILE).read_text(encoding="utf-8")))
    return Study(name=name, **content | {"tables": tuple(map(_table, content["tables"]))})


def _table(content: dict[str, Any]) -> Table:
    columns = {str(label): tuple(overrides) for label, overrides in content.pop("columns", {"": ()}).items()}
    rows = {str(label): Row(**_tuples(values)) for label, values in content.pop("rows").items()}
    crossing = Crossing(**_tuples(content.pop("crossing"))) if "crossing" in content else None
    return Table(columns=columns, rows=rows, crossing=crossing, **_tuples(content))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def dense_point(study: Study, point: Point) -> Point:
    """The dense network that a point is pruned from; recoveries with other seeds share that of the first."""
    seed = point.seed if study.seed_key == "seed" else study.first_seed
    overrides = (*_shared(study, point.network, seed), "pattern=dense")
    return Point(study.name, point.network, "", DENSE, "", seed, overrides, point.turn)


def points(study: Study, *, of: Iterable[str] | None = None, seeds: Sequence[int] | None = None) -> Iterator[Point]:
    """Every point but the dense ones: all cells (of `headlines_only` headlines) with the first seed, headlines with the others.

    Args:
        of: networks; None: all of the study.
        seeds: only these; None: all.
    """
    wanted = [name for name in study.networks if of is None or name in of]
    for network, seed in product(wanted, study.headline_seeds):
        if seeds is not None and seed not in seeds:
            continue
        for point in _cells(study, network, seed):
            if point.turn != 1 or (seed == study.first_seed and network not in study.headlines_only):
                yield point


def every_point(study: Study) -> Iterator[Point]:
    """Every cell with every seed, and the dense point of each."""
    for network, seed in product(study.networks, study.seeds):
        cells = list(_cells(study, network, seed))
        yield from dict.fromkeys(dense_point(study, point) for point in cells)
        yield from cells


def again(study: Study, point: Point, seeds: Iterable[int]) -> Iterator[Point]:
    """A point with the others of these seeds, whether it is a headline or not."""
    for seed in seeds:
        if seed != point.seed:
            yield next(
                replace(other, turn=2)
                for other in _cells(study, point.network, seed)
                if other == replace(point, seed=seed)
            )


def _cells(study: Study, network: str, seed: int) -> Iterator[Point]:
    shared, others = _shared(study, network, seed), seed != study.first_seed
    for table in study.tables:
        if table.networks and network not in table.networks:
            continue
        for (label, row), (column, overrides) in product(table.rows.items(), table.columns.items()):
            turn = (2 if others else 0) if column in row.headline else 1
            chosen = (*shared, *overrides, *row.overrides)
            yield Point(study.name, network, table.title, label, column, seed, chosen, turn)


def _shared(study: Study, network: str, seed: int) -> tuple[str, ...]:
    return (*study.overrides, *networks()[network].overrides, f"{study.seed_key}={seed}")
