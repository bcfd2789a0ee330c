"""Pages stay short, their links lead somewhere, and their prose names no commits."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "kernels"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted(KERNELS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
HASH = re.compile(r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b")


def prose(page: Path) -> str:
    """Without tables and blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))


def test_readme_and_changelog_are_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1200
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert len(changelog.splitlines()) <= 150 and len(changelog.split()) <= 1500


WITHOUT_COMMITS = [name for name in NAMES if not name.startswith("kernels/")]


@pytest.mark.parametrize("page", [ROOT / name for name in WITHOUT_COMMITS], ids=WITHOUT_COMMITS)
def test_prose_names_no_commit(page: Path):
    """Commits are columns of the CSV files: a reader of a page cannot use them."""
    assert HASH.findall(prose(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_lead_to_files(page: Path):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    missing = [name for name in files if name and not (page.parent / name).exists()]
    assert missing == []


def test_the_python_of_readme_is_that_of_the_library_page():
    """Which runs its own: tests/library/test_document.py."""
    readme, library = (
        re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        for page in (ROOT / "README.md", ROOT / "docs" / "library.md")
    )
    assert readme and set(readme) <= set(library)
