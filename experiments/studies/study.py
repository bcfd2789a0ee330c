"""The points of a study, from its `study.yaml`, and the rows of its finished points.

    python -m experiments.studies.study points uniform sst2 > points.yaml
    python run.py -m sweep.points=points.yaml sweep.pack=packed model.path=DIR dataset.path=DIR
    python -m experiments.studies.study rows uniform packed

Headlines come first, then the other cells, then headlines with further seeds. `points` leaves out cells that points.csv holds or
names as unsupported; `--seeds` and `--only` choose others, such as the two best of a column, or the levels beside a crossing.
Nothing is timed without `--timed`, so that points share a GPU; with it they get kernels.
`rows` appends a row to points.csv for each packed record that is a cell and has none; `table.py` makes the page's tables.
"""

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from experiments.harness import rows, runs
from experiments.harness.rows import append_line, read_lines
from sparsefront.results.run_folder import read_overrides
from sparsefront.results.store import read_results

EXPERIMENTS = Path(__file__).resolve().parents[1]
STUDY_FILE, FILE = "study.yaml", "points.csv"
END_OF_POINT = runs.QUIET[0]  # in the column of overrides: what follows is not the point's own
UNTIMED = "none"  # kernel of a row without a latency
HOW = ("kernel", "measure.", "optimize", "logger", "report.")  # overrides that make no other point
OF_UNTIMED = ("kernel=none", "measure.latency=false", "optimize=[val_masked]")
DIGEST = "dense_weights_sha256"
IDENTITY = ("study", "network", "table", "row", "column", "seed")
FACTS = tuple(
    "pattern granularity n_of_m recovery schedule sparsity_target sparsity_achieved metric_name val_dense "
    "val_dense_continued val_masked val_sparse dense dense_continued masked sparse dataset_split dense_standard_error "
    "masked_standard_error evaluated_samples val_evaluated_samples dense_steps recovery_steps latency_dense_ms "
    "latency_sparse_ms speedup speedup_low speedup_high sparse_flops_share batch_size sequence_length dtype gpu "
    "processor torch_version commit time dense_weights_sha256 run_id".split()
)
COLUMNS = (*IDENTITY, "kernel", "unsupported", *FACTS, "seconds", "overrides")

Line = dict[str, str]


@dataclass(frozen=True)
class Cell:
    """One cell of a table of one network.

    Args:
        own: overrides of run.py, without the seed.
        source: what the source reports; None if nothing.
        headline: made first, and with every seed of the study.
        planned: False for the other cells of a network with headlines only.
        note: next to the row's label.
    """

    network: str
    table: str
    row: str
    column: str
    own: tuple[str, ...] = field(compare=False)
    source: float | str | None = field(compare=False, default=None)
    headline: bool = field(compare=False, default=False)
    planned: bool = field(compare=False, default=True)
    note: str = field(compare=False, default="")

    def __str__(self) -> str:
        return f"{self.network}: {self.table} · {self.row} · {self.column}"


@dataclass(frozen=True)
class Study:
    """A study.yaml.

    Args:
        networks: of networks.yaml.
        tables: title, columns and rows with overrides, what the source reports (`paper`), and a crossing: the points lost at
            which a sparsity is read off, and the number of retrainings of the levels next to it.
        headlines_only: networks with headlines only.
        targets: network -> column -> test metric in percent that the row with the best val must reach.
        seed_key: `seed` (the dense network and everything after it) or `recovery.seed` (one dense network for all).
    """

    name: str
    networks: Sequence[str]
    tables: Sequence[dict[str, Any]]
    headlines_only: Sequence[str] = ()
    overrides: Sequence[str] = ()
    headline_seeds: Sequence[int] = (0, 1, 2)
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    seed_key: str = "seed"

    @classmethod
    def read(cls, name: str) -> "Study":
        """The study of a folder of experiments/."""
        return cls(name, **yaml.safe_load((EXPERIMENTS / name / STUDY_FILE).read_text(encoding="utf-8")))

    @property
    def points_file(self) -> Path:
        return EXPERIMENTS / self.name / FILE

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, network by network, in the order of the tables."""
        known = networks()
        return [
            cell
            for network, table in product(self.networks, self.tables)
            if network in table.get("networks", self.networks)
            for cell in _cells(
                table, network, (*self.overrides, *known[network]["overrides"]), network in self.headlines_only
            )
        ]

    def overrides_of(self, cell: Cell, seed: int) -> list[str]:
        """All overrides that identify a point."""
        return [*cell.own, f"{self.seed_key}={seed}"]

    def points(self) -> Iterator[tuple[Cell, int]]:
        """Cells with their seeds, in order of priority."""
        first, *others = self.headline_seeds
        headlines = [cell for cell in self.cells if cell.headline]
        yield from ((cell, first) for cell in headlines)
        yield from ((cell, first) for cell in self.cells if cell.planned and not cell.headline)
        yield from ((cell, seed) for seed in others for cell in headlines)


@cache
def networks() -> dict[str, dict[str, Any]]:
    """Networks that studies may name: overrides of all points, and those of timed ones (`latency`)."""
    return yaml.safe_load(Path(__file__).with_name("networks.yaml").read_text(encoding="utf-8"))


def _cells(table: dict[str, Any], network: str, shared: Sequence[str], headlines_only: bool) -> Iterator[Cell]:
    columns = table.get("columns", {"": []})
    for label, row in table["rows"].items():
        for place, (column, overrides) in enumerate(columns.items()):
            source = row["paper"][place] if place < len(row.get("paper", ())) else None
            own = (*shared, *overrides, *row["overrides"])
            headline = column in row.get("headline", ())
            place_in_table = (network, table["title"], label, column)
            yield Cell(*place_in_table, own, source, headline, headline or not headlines_only, row.get("note", ""))


def settings(overrides: Iterable[str]) -> frozenset[str]:
    """What must be equal for a row to be of a point: its overrides without the trainer's."""
    return frozenset(text for text in overrides if not text.startswith("trainer."))


def points(
    study: Study, network: str, *, seeds: Sequence[int] | None = None, only: Sequence[str] = (), timed: bool = False
) -> list[list[str]]:
    """Points of a network for `sweep.points`, in order of priority, without those that have a row.

    Args:
        seeds: of all cells; None: those of the study.
        only: texts, one of which a point's name must contain; empty: all.
        timed: whether kernels are swapped in and timed.
    """
    same = [line for line in read_lines(study.points_file) if timed == (line["kernel"] != UNTIMED)]
    done = {(*map(line.get, IDENTITY[1:-1]), int(line["seed"])) for line in same}
    how = networks()[network]["latency"] if timed else OF_UNTIMED
    combinations = study.points() if seeds is None else product(study.cells, seeds)
    todo = [
        [*study.overrides_of(cell, seed), *how]
        for cell, seed in combinations
        if cell.network == network
        and (cell.network, cell.table, cell.row, cell.column, seed) not in done
        and (not only or any(text in str(cell) for text in only))
    ]
    return [own for place, own in enumerate(todo) if own not in todo[:place]]


def rows_of(study: Study, records: Sequence[Path]) -> Iterator[Line]:
    """New rows of the cells that packed records or run folders hold; runs with other settings are of no cell."""
    runs_with_row = {(line["run_id"], line["table"], line["row"]) for line in read_lines(study.points_file)}
    for entries in read_results(records).places.values():
        for result, place in entries:
            flat, overrides = result.flat(), read_overrides(place) or []
            seed = next((int(text.partition("=")[2]) for text in overrides if text.startswith(f"{study.seed_key}=")), 0)
            asked = settings(text for text in runs.without_places(overrides) if not text.startswith(HOW))
            for cell in study.cells:
                own = study.overrides_of(cell, seed)
                if settings(own) == asked and (flat["run_id"], cell.table, cell.row) not in runs_with_row:
                    others = [text for text in overrides if text not in {*own, *runs.QUIET}]
                    cost = [result.cost.prune_seconds, result.cost.recover_seconds, result.cost.measure_seconds]
                    line = {name: flat.get(name) for name in FACTS} | {
                        **dict(zip(IDENTITY, (study.name, cell.network, cell.table, cell.row, cell.column, seed))),
                        "kernel": flat["kernel_mode"] if flat["speedup"] is not None else UNTIMED,
                        "seconds": round(sum(value or 0 for value in cost), 1),
                        "overrides": shlex.join([*own, END_OF_POINT, *runs.without_places(others)]),
                    }
                    yield {name: rows.text(line.get(name)) for name in COLUMNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = sorted(path.parent.name for path in EXPERIMENTS.glob(f"*/{STUDY_FILE}"))
    of_points, of_rows = commands.add_parser("points"), commands.add_parser("rows")
    for command in (of_points, of_rows):
        command.add_argument("study", choices=names)
    of_points.add_argument("network")
    of_points.add_argument("--seeds", type=int, nargs="+", help="of all cells, instead of the study's")
    of_points.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="cells whose name contains one of these"
    )
    of_points.add_argument("--timed", action="store_true", help="points whose kernels are timed")
    of_rows.add_argument("records", type=Path, nargs="+", help="packed records, run folders, or folders of these")
    arguments = parser.parse_args()
    study = Study.read(arguments.study)
    if arguments.command == "rows":
        for line in list(rows_of(study, arguments.records)):
            append_line(study.points_file, line)
            print(", ".join(str(line[name]) for name in IDENTITY))
    elif arguments.network not in study.networks:
        parser.error(f"{arguments.network} must be one of {', '.join(study.networks)}")
    else:
        chosen = {"seeds": arguments.seeds, "only": arguments.only, "timed": arguments.timed}
        selected = points(study, arguments.network, **chosen)
        yaml.safe_dump(selected, sys.stdout, default_flow_style=None, width=200, allow_unicode=True)


if __name__ == "__main__":
    main()
