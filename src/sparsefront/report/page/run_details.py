"""What the page tells of single runs when a reader asks: the command, the layers, the pictures of masks.

Of a large comparison it holds layers and pictures of the most interesting runs only: the page must stay fluid.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sparsefront.report.layer_lines import layer_lines
from sparsefront.report.result import Result
from sparsefront.report.run_command import run_command

MOST_RUNS_WITH_LAYERS = 200
MOST_PICTURE_BYTES = 3_000_000


def run_details(
    results: Sequence[Result], folder_of: Callable[[Result], Path | None], first: Iterable[Result]
) -> dict[str, Any]:
    """`commands` and `folders`, one entry per run; `layers` and `pictures`, by a run's place.

    Args:
        folder_of: the folder of a result's `row.json`, None where it is not at hand.
        first: results whose layers and pictures are wanted most, the best first.
    """
    places = {id(result): place for place, result in enumerate(results)}
    order = list({id(result): result for result in (*first, *results)}.values())
    folders = [folder_of(result) for result in results]
    return {
        "commands": [run_command(result, folder) for result, folder in zip(results, folders)],
        "folders": [None if folder is None else str(folder) for folder in folders],
        "layers": {
            places[id(result)]: [list(lines[0]), *(list(line.values()) for line in lines)]
            for result in order[:MOST_RUNS_WITH_LAYERS]
            if (lines := layer_lines(result))
        },
        "pictures": _pictures({places[id(result)]: folders[places[id(result)]] for result in order}),
    }


def _pictures(folders: dict[int, Path | None]) -> dict[int, list[dict[str, str]]]:
    """Place -> [{"name", "base64"}] of the PNG files below `masks/`, until the page is full."""
    pictures: dict[int, list[dict[str, str]]] = {}
    left = MOST_PICTURE_BYTES
    for place, folder in list(folders.items())[:MOST_RUNS_WITH_LAYERS]:
        files = [] if folder is None else sorted(folder.glob("masks/*.png"))
        left -= sum(file.stat().st_size for file in files)
        if left < 0:
            break
        if files:
            pictures[place] = [picture(file) for file in files]
    return pictures


def picture(file: Path) -> dict[str, str]:
    """A PNG file for a `data:` address."""
    return {"name": file.stem, "base64": base64.b64encode(file.read_bytes()).decode()}
