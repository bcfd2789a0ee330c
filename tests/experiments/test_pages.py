"""Every page of experiments/ that the index names is short, and opens with its answer."""

import re
from pathlib import Path

import pytest

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
