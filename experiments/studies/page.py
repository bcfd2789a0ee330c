"""The pages of the studies, from their lines: README.md and a plot in each folder.

    python -m experiments.studies.page [STUDY ...] [--out DIR]

What is written by hand about the numbers stands in the study's file: three sentences first, notes below the tables.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from experiments.studies import definition, tables
from experiments.studies.cells import FILE, Cells, cells_of, current_lines, read_lines
from experiments.studies.crossing import iso_head, iso_lines
from experiments.studies.definition import Study
from experiments.studies.draw import PLOT, draw
from experiments.studies.tables import PLAN, PRODUCTS, product_lines, repeat_lines


def page(study: Study, folder: Path) -> str:
    """The page, and its plot beside it where there is something to draw.

    Args:
        folder: of the study's lines.
    """
    drawn = draw(study, cells_of(study, current_lines(study, folder / FILE)), folder / PLOT)
    return text(study, folder, drawn=drawn)


def text(study: Study, folder: Path, *, drawn: bool) -> str:
    """The page, which shows the plot where it is drawn."""
    lines = current_lines(study, folder / FILE)
    earlier = len(read_lines(folder / FILE)) - len(lines)
    return "\n".join(_lines(study, cells_of(study, lines), folder, drawn=drawn, earlier=earlier)) + "\n"


def _lines(study: Study, cells: Cells, folder: Path, *, drawn: bool, earlier: int) -> Iterator[str]:
    """`earlier`: how many lines were measured with settings that the study no longer has."""
    yield from (f"# {study.title}", "", study.about.strip(), "")
    if drawn:
        yield from (f"![Accuracy on test]({PLOT})", "")
    if study.targets:
        yield from ("## Targets", "", *tables.target_lines(study, cells), "")
    yield from ("## Networks", "", *tables.network_lines(study, cells))
    if words := list(tables.words_lines(study, cells)):
        yield from ("", *words)
    named: set[tuple[str, str]] = set()  # titles with their sources, each once a page
    for place, name in enumerate(study.networks):
        for table in study.tables:
            of_network = not table.networks or name in table.networks
            # the first network's tables show the source's numbers also before there are any of ours
            if of_network and (tables.has_lines(table, name, cells) or place == 0):
                yield from ("", f"## {table.title}: {name}", "")
                yield from tables.table_lines(study, table, name, cells)
                if table.paper and (table.title, table.paper) not in named:
                    named.add((table.title, table.paper))
                    yield from ("", f"Source of {table.title}: {table.paper}.")
                if found := list(iso_lines(study, table, name, cells)):
                    yield from ("", iso_head(table.crossing_of(name)), "", *found)
    products = (study.folder / PLAN).exists()
    if products:
        yield from ("", "## Products", "", *product_lines(folder), "", study.products.strip())
    if study.notes:
        yield from ("", "## Notes", "", study.notes.strip())
    yield from _checks(study, cells, folder, earlier=earlier)
    yield from ("", "## To repeat", "")
    networks = definition.networks()
    options = sorted({option for name in study.networks for option in networks[name].folders.values()})
    command = f"python -m experiments.studies.study {study.name} {' '.join(f'--{name} DIR' for name in options)}"
    yield f"    {command} --workers 8    # adds to {definition.RESULTS / study.name / FILE} what is not there yet"
    yield f"    {command} --headlines --kernels auto sparse    # times the headlines"
    if products:
        files = f"--plan experiments/{study.name}/{PLAN} --output experiments/{study.name}/{PRODUCTS}"
        yield f"    python -m sparsefront_kernels.bench {files} --append    # the products"
    yield f"    python -m experiments.studies.page {study.name}    # this page, of those lines"
    yield f"    python compare.py results/experiments/{study.name}    # the runs themselves"
    yield from ("", *tables.measured_lines(cells, folder), "")
    baseline = "A speedup is over the fastest dense version of the same process."
    yield f"*Measured on*: the devices above; commit and device of each line are in `{FILE}`. {baseline}"


def _checks(study: Study, cells: Cells, folder: Path, *, earlier: int) -> Iterator[str]:
    """How far the same weights and the same points lie apart when they are measured twice."""
    texts = list(tables.timed_lines(cells))
    if earlier:
        texts.append(f"{earlier} lines of {FILE} were measured with other settings and are not shown.")
    repeated = list(repeat_lines(study, folder))
    if repeated:
        texts.append("Differences in points between runs with retrained dense networks:")
    if texts:
        yield from ("", "## Checks")
    for text in texts:
        yield from ("", text)
    if repeated:
        yield from ("", *repeated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=definition.study_names())
    parser.add_argument("--out", type=Path, default=definition.RESULTS, help="folder of the studies' folders")
    arguments = parser.parse_args()
    for name in arguments.studies:
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(page(definition.read_study(name), folder), encoding="utf-8")
        print(folder / "README.md")


if __name__ == "__main__":
    main()
