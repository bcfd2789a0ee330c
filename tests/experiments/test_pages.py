"""Every page of experiments/ that the index names is short, opens with its answer, and holds the tables of its files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest

from experiments.complaints import page as complaints
from experiments.end_to_end import library, summary
from experiments.harness.rows import read_lines
from experiments.language_models import study as language_models
from experiments.low_precision import operators as low_products
from experiments.low_precision import summary as low_precision
from experiments.operators import crossover, kernels_by_m, uniform
from experiments.operators.measurements import read_measurements
from experiments.pattern_retention import draw as pattern_retention
from experiments.search import summary as search
from experiments.splits import leak_probe

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
INDEX = FOLDER / "README.md"
PAGES = sorted(re.findall(r"^\| \[\w+\]\((\w+/README\.md)\)", INDEX.read_text(), flags=re.M))
MOST_WORDS, MOST_NUMBERS = 8_000, 4
PROVENANCE = "*Measured on*: "
# not a part of a name or of a size, such as fp16, 2:4, 4096², 3x3 or 128×128
NUMBER = re.compile(r"(?<![\w.,:/×→=-])[-+−≤]?(?>\d+(?:[.,]\d+)*)(?!\w|:\d|×\d|→|-\d)")


def paragraphs(text: str) -> list[str]:
    """Prose: neither tables, nor code, pictures, comments and titles; a bullet is one."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^(?:\s*\|| {4}|!\[|#).*$", "", text, flags=re.M)
    parts = [part.strip() for part in re.split(r"\n\s*\n|\n(?=- )", text)]
    return [part for part in parts if part]


def numbers(paragraph: str) -> list[str]:
    """Those that a reader meets: a mean with its deviation is one, and what is code or an address is none."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", paragraph)
    return NUMBER.findall(re.sub(r"± ?[\d.]+", "", text))


def test_numbers_of_a_paragraph():
    text = "2:4 gains 1.17× and 50 % of `a=3`, 4096² and 3×3 in fp16, 89.0 ± 0.2 of 6,735: ([x](y2/z3))."
    assert numbers(text) == ["1.17", "50", "89.0", "6,735"]


def test_the_index_names_pages():
    assert len(PAGES) >= 15 and len(INDEX.read_text().replace("|", " ").split()) <= 300


def test_all_pages_together_can_be_read():
    words = sum(
        len(part.split())
        for page in (INDEX, *(FOLDER / name for name in PAGES))
        for part in paragraphs(page.read_text())
    )
    assert words <= MOST_WORDS


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_with_three_sentences(name):
    before = (FOLDER / name).read_text().split("\n## ")[0]
    lead = paragraphs(before)[0]
    assert len(re.findall(r"[.?!](?=\s|$)", lead)) <= 3
    assert re.search(r"^(?:\||!\[)", before, flags=re.M), "no figure and no table stands first"


@pytest.mark.parametrize("name", PAGES)
def test_page_ends_with_its_machine(name):
    *others, last = paragraphs((FOLDER / name).read_text())
    assert last.startswith(PROVENANCE) and not any(part.startswith(PROVENANCE) for part in others)


@pytest.mark.parametrize("name", PAGES)
def test_no_paragraph_is_a_table(name):
    *others, _ = paragraphs((FOLDER / name).read_text())
    assert not {part[:60]: found for part in others if len(found := numbers(part)) > MOST_NUMBERS}


def tables_of(folder: Path) -> Iterator[str]:
    """What a page must hold, made of the rows that lie beside it."""
    if folder.name == "complaints":
        rows = {(row["thread"], row["way"]): row for row in read_lines(folder / "verdicts.csv")}
        yield "\n".join(complaints.verdict_table(rows))
    elif folder.name == "end_to_end":
        tables = summary.tables(read_lines(folder / "h200.csv"), read_lines(folder / "ablation.csv"))
        yield f"{summary.MARKS[0]}\n\n{tables}\n{summary.MARKS[1]}"
    elif folder.name == "language_models":
        yield language_models.page(read_lines(language_models.PUBLISHED))
    elif folder.name == "low_precision":
        yield from low_precision.network_table([low_precision.RECORDS])
        yield from low_precision.large_table(read_lines(folder / "large.csv"))
        yield from low_precision.peers_table(read_lines(folder / "peers.csv"))
        yield from low_products.table(read_lines(folder / "operators.csv"))
    elif folder.name == "operators":
        measurements = read_measurements(folder / "h200.csv").measurements
        yield "\n".join(crossover.markdown(crossover.crossovers(measurements), "fp16"))
        yield from map(str.strip, uniform.markdown(uniform.read_speedups(folder / "uniform.csv")).split("\n\n"))
    elif folder.name == "pattern_retention":
        yield f"| --- |\n{pattern_retention.markdown(pandas.read_csv(folder / 'retention.csv'))}\n\n"
    elif folder.name == "search":
        for file in (folder / "minilm.csv", folder / "minilm_h100.csv"):
            rows = read_lines(file)
            for table in (search.all_choices(rows), search.table(rows, read_lines(search.pairs_file(file)))):
                yield f"-->\n{chr(10).join(table)}\n<!--"
    elif folder.name == "splits":
        yield leak_probe.page(read_lines(folder / "probe.csv"))


WITH_TABLES = ("complaints", "end_to_end", "language_models", "low_precision", "operators", "pattern_retention")


@pytest.mark.parametrize("name", [*WITH_TABLES, "search", "splits"])
def test_page_holds_tables_of_its_files(name):
    """A failing one is written again by the programs that its folder names."""
    page, tables = (FOLDER / name / "README.md").read_text(), list(tables_of(FOLDER / name))
    assert tables and all(table in page for table in tables)


def test_published_networks_are_the_pages():
    rows = read_lines(library.PUBLISHED)
    assert rows and all(row["gpu"] and row["network"] in library.NETWORKS | library.OF_THE_TALK for row in rows)
    assert library.page(rows) in library.PAGE.read_text()


def test_shipped_tables_follow_their_measurements(tmp_path):
    """After new measurements: python -m experiments.operators.draw."""
    folder, out = FOLDER / "operators", (tmp_path / "crossover.csv", tmp_path / "kernels_by_m.csv")
    measurements = read_measurements(folder / "h200.csv").measurements
    crossover.write_csv(crossover.crossovers(measurements), out[0])
    kernels_by_m.write_by_m_csv(kernels_by_m.times_by_m(measurements), out[1])
    assert all((folder / file.name).read_text() == file.read_text() for file in out)
