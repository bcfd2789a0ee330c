"""The table of kills.json in README.md.

python -m experiments.sweeps.kills_page
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BEGIN, END = "<!-- kills: written by kills_page.py from kills.json -->", "<!-- end of the kills -->"
COLUMNS = ("study", "SIGKILLs", "seconds", "trainings that went on after an epoch", "leases left", "half-written left")


def fill(page: Path, found: dict[str, Any]) -> None:
    """Put the table between the marks of a page.

    Args:
        found: of kills.json.
    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for the table: {BEGIN} and {END}")
    page.write_text("\n".join([before + BEGIN, "", *table(found), "", END + after]))


def table(found: dict[str, Any]) -> list[str]:
    """Markdown: a line per study, then what both share; what they were made by is in kills.json."""
    lines = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    for name in ("undisturbed", "killed"):
        study = found[name]
        counts = (study[key] for key in ("kills", "seconds", "trainings_resumed", "held", "partial"))
        lines.append(_row([name, *map(str, counts)]))
    same = f"the same {found['rows']} rows, quality equal to the bit" if found["same_rows"] else "**other rows**"
    made = found["made_by"]
    overrides = " ".join(found["overrides"])
    setting = f"{found['points']} points, {found['workers']} workers on {made['cores']} cores, `{overrides}`"
    return [*lines, "", f"Both studies: {same} ({setting})."]


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    fill(FOLDER / "README.md", json.loads((FOLDER / "kills.json").read_text()))
