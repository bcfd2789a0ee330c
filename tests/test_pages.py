"""Pages stay short, their links lead somewhere, and their prose names no commits.

docs/tour.md names the files of the main job: they are there, are few, and hold the way from the command to the training.
"""

import re
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
from quick_settings import QUICK

from sparsefront.pipeline import run_experiment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "kernels").rglob("*.md"))]
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.md"))
MOST_WORDS, MOST_WORDS_OF_DECISIONS = 20_000, 2_400
NAMES = [str(page.relative_to(ROOT)) for page in [*PAGES, *EXPERIMENTS]]
HASH = re.compile(r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b")


def prose(page: Path) -> str:
    """Without tables and blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))


def test_readme_and_changelog_are_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1200
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert len(changelog.splitlines()) <= 150 and len(changelog.split()) <= 1500


def test_all_prose_can_be_read():
    """Of every page together, without the changelog, plans, and what is written from docstrings; tables and code are looked up,
    not read.
    """
    apart = ("CHANGELOG.md", "PLAN.md", "api.md")  # a plan is written before its study and frozen
    words = {page: len(prose(page).split()) for page in [*PAGES, *EXPERIMENTS] if page.name not in apart}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])[:5]
    assert words[ROOT / "docs" / "decisions.md"] <= MOST_WORDS_OF_DECISIONS


@pytest.mark.parametrize("page", [*PAGES, *EXPERIMENTS], ids=NAMES)
def test_prose_names_no_commit(page: Path):
    """Commits are columns of the CSV files: a reader of a page cannot use them."""
    assert HASH.findall(prose(page)) == []


@pytest.mark.parametrize("page", [*PAGES, *EXPERIMENTS], ids=NAMES)
def test_links_lead_to_files(page: Path):
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in target]
    missing = []
    for target in targets:
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (heading and heading not in headings(file)):
            missing.append(target)
    assert missing == []


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_python_of_readme():
    """Which runs its own: tests/library/test_document.py."""
    readme, library = (
        re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        for page in (ROOT / "README.md", ROOT / "docs" / "library.md")
    )
    assert readme and set(readme) <= set(library)


PAGE = (ROOT / "docs" / "tour.md").read_text()


def test_places_of_the_tour():
    named = re.findall(r"`((?:src|conf|kernels|docs)/[\w/.]*)`", PAGE)
    assert named and all((ROOT / name).exists() for name in named), named


def test_few_calls_lead_to_training(composed, monkeypatch):
    """Functions of ours between the one that the command calls and Lightning's: what a reader of a training goes through."""
    calls: list[list[str]] = []

    def fit(self, *arguments, **named):
        own, frame = [], sys._getframe(1)
        while frame.f_code.co_name != "test_few_calls_lead_to_training":
            if frame.f_code.co_filename.startswith(str(ROOT / "src")):
                own.insert(0, frame.f_code.co_qualname)
            frame = frame.f_back
        calls.append(own)
        return real(self, *arguments, **named)

    real = pl.Trainer.fit
    monkeypatch.setattr(pl.Trainer, "fit", fit)
    run_experiment(composed("debug=tiny", *QUICK, "granularity=16", "stages=[dense,prune,recover]"))
    dense, recover = calls
    assert dense[0] == recover[0] == "run_experiment" and dense[-1] == recover[-1] == "fit"
    assert len(dense) <= 6, dense
    assert len(recover) <= 9, recover
