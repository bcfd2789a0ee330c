"""The pages of the studies, from their lines: README.md and a plot in each folder.

    python experiments/studies/page.py [STUDY ...] [--out DIR]

What is written by hand about the numbers stands in `reading.md` of the folder, and is put under the tables as it is.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import definition  # beside this file
import rows
import tables
from cells import Cells, cells_of
from crossing import iso_head, iso_lines
from definition import Study
from draw import PLOT, draw
from products import PLAN, product_lines
from repeats import repeat_lines

READING = "reading.md"


def page(study: Study, folder: Path) -> str:
    """The page, and its plot beside it where there is something to draw.

    Args:
        folder: of the study's lines.
    """
    drawn = draw(study, cells_of(study, rows.current_lines(study, folder / rows.FILE)), folder / PLOT)
    return text(study, folder, drawn=drawn)


def text(study: Study, folder: Path, *, drawn: bool) -> str:
    """The page, which shows the plot where it is drawn."""
    lines = rows.current_lines(study, folder / rows.FILE)
    earlier = len(rows.read_lines(folder / rows.FILE)) - len(lines)
    return "\n".join(_lines(study, cells_of(study, lines), folder, drawn=drawn, earlier=earlier)) + "\n"


def _lines(study: Study, cells: Cells, folder: Path, *, drawn: bool, earlier: int) -> Iterator[str]:
    """`earlier`: how many lines were measured with settings that the study no longer has."""
    yield from (f"# {study.title}", "", study.about.strip(), "")
    if drawn:
        yield from (f"![Accuracy on test]({PLOT})", "")
    yield from _counts(study, cells)
    if earlier:
        yield from ("", f"{earlier} lines of {rows.FILE} were measured with other settings and are not shown.")
    for told in tables.timed_lines(cells):
        yield from ("", told)
    if study.targets:
        yield from ("", "## Targets", "", *tables.target_lines(study, cells))
    networks = definition.networks()
    for place, name in enumerate(study.networks):
        for table in study.tables:
            of_network = not table.networks or name in table.networks
            # the first network's tables show the source's numbers also before there are any of ours
            if of_network and (tables.has_lines(table, name, cells) or place == 0):
                yield from ("", f"## {table.title}: {networks[name].title}", "")
                if told := tables.dense_text(study, table, name, cells):
                    yield from (told, "")
                if table.paper:
                    yield from (f"Source: {table.paper}.", "")
                yield from tables.table_lines(study, table, name, cells)
                if found := list(iso_lines(study, table, name, cells)):
                    yield from ("", iso_head(table.crossing_of(name)), "", *found)
    if found := list(repeat_lines(study, folder)):
        yield from (
            "",
            "## Trained anew",
            "",
            "The same point and seed, from a dense network trained anew, in another call or on another GPU, differs:",
            "",
            *found,
        )
    if (study.folder / PLAN).exists():
        yield from ("", "## Products", "", study.products.strip(), "", *product_lines(folder))
    if (reading := folder / READING).exists():
        yield from ("", "## Reading", "", reading.read_text().strip())
    folders = sorted({option for name in study.networks for option in networks[name].folders.values()})
    command = f"python experiments/studies/study.py {study.name} {' '.join(f'--{name} DIR' for name in folders)}"
    yield from ("", "## To repeat", "")
    yield f"    {command} --workers 8    # adds to {rows.FILE} what is not there yet"
    yield f"    {command} --headlines --kernels auto sparse    # times the headlines"
    yield f"    python experiments/studies/page.py {study.name}    # this page"
    yield f"    python compare.py results/experiments/{study.name}    # the runs themselves"


def _counts(study: Study, cells: Cells) -> Iterator[str]:
    """How many points of each network have a line, and how many of them a latency."""
    yield "Points with a line:"
    yield ""
    for name in study.networks:
        of_network = [cell for point, cell in cells.items() if point.network == name]
        found = sum(bool(cell.accuracy) for cell in of_network)
        timed = sum(bool(cell.timed["auto"]) for cell in of_network)
        yield f"- {definition.networks()[name].title}: {found} of {len(of_network)}, {timed} of them timed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=definition.study_names())
    parser.add_argument("--out", type=Path, default=definition.EXPERIMENTS, help="folder of the studies' folders")
    arguments = parser.parse_args()
    for name in arguments.studies:
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(page(definition.read_study(name), folder))
        print(folder / "README.md")


if __name__ == "__main__":
    main()
