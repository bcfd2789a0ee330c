"""Of which dense network each line is: those of one seed, pruned from one dense network, are a block."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from experiments.studies import definition
from experiments.studies.cells import Cell, Cells
from experiments.studies.definition import Point, Study
from experiments.studies.rows import Line
from experiments.studies.work import DIGEST

METRICS = ("val_dense", "dense")


@dataclass(frozen=True)
class Block:
    """The lines of one dense network, where others of its seed are of another one.

    Args:
        seed: of the dense network.
        digest: of its weights.
        newest: whether the dense network that was trained last is this one.
        val, test: metric of the dense network, in per cent.
    """

    letter: str
    seed: int
    digest: str
    newest: bool
    val: float
    test: float


def blocks_of(study: Study, network: str, cells: Cells) -> dict[str, Block]:
    """Digest -> block, of the seeds with several dense networks; of each seed the newest comes first."""
    of_network = [(point, cell) for point, cell in cells.items() if point.network == network]
    lines = [(int(line["seed"]), line) for _, cell in of_network for line in cell.dense]
    newest = {line[DIGEST] for _, line in lines}
    lines += [(_dense_seed(study, point, line), line) for point, cell in of_network for line in cell.measured]
    of_seed: dict[int, dict[str, Line]] = {}
    for seed, line in lines:
        of_seed.setdefault(seed, {}).setdefault(line[DIGEST], line)
    several = [
        (seed, digest, line)
        for seed, found in sorted(of_seed.items())
        if len(found) > 1
        for digest, line in found.items()
    ]
    return {
        digest: Block(_letter(place), seed, digest, digest in newest, *(100 * float(line[name]) for name in METRICS))
        for place, (seed, digest, line) in enumerate(several)
    }


def mixed(blocks: Mapping[str, Block], cells: list[Cell]) -> dict[str, Block]:
    """The blocks that a table names: none where all of its lines are of the newest dense networks."""
    seen = {line[DIGEST] for cell in cells for line in cell.measured}
    seeds = {block.seed for block in blocks.values() if block.digest in seen and not block.newest}
    return {digest: block for digest, block in blocks.items() if block.seed in seeds}


def letters(blocks: Mapping[str, Block], cell: Cell) -> str:
    """Those of a cell's lines; "" of seeds with one dense network."""
    found = (line[DIGEST] for line in cell.measured)
    return ", ".join(sorted({blocks[digest].letter for digest in found if digest in blocks}))


def _dense_seed(study: Study, point: Point, line: Line) -> int:
    return definition.dense_point(study, replace(point, seed=int(line["seed"]))).seed


def _letter(place: int) -> str:
    return chr(ord("A") + place)
