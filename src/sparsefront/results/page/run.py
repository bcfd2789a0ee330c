"""The page of one run; templates and details shared with the page of a comparison."""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded
from sparsefront.artifacts.content_digest import versions
from sparsefront.artifacts.durable import whole_file
from sparsefront.provenance import code_commit
from sparsefront.pruning.collapse import collapse_warning
from sparsefront.results.candidates import provenance
from sparsefront.results.columns import COLUMNS, find_collapsed, find_metric, plain
from sparsefront.results.comparable import SPEEDUP, Axis, split_comparable
from sparsefront.results.latency_table import curve_figure, curve_lines, wins_text
from sparsefront.results.plots import pareto_figure, svg_text
from sparsefront.results.record import Result
from sparsefront.results.run_folder import run_command
from sparsefront.results.serving import read_all_serving, serving_lines
from sparsefront.results.tables import apart_from_medians, layer_lines, run_lines

# Templates of the pages; styles and scripts are separate files that are inlined.

# In order of dependency.
SCRIPTS = "data text front picked address symbols scale chart charts filters budget table details download main".split()


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write a page atomically, creating its folder. Values are escaped unless they are `Markup`."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("sparsefront.results", "page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    commit = code_commit()
    made = f"Written on {date.today()} by sparsefront {versions('sparsefront')['sparsefront'] or ''}"
    made += f", commit {commit[:12]}." if commit else "."
    page = environment.get_template(template).render(style=Markup(_text("style.css")), made=made, **values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8", errors="backslashreplace")  # names may contain invalid characters
    return path


def script_text() -> str:
    """All JavaScript of the comparison."""
    return "\n".join(_text(f"script/{name}.js") for name in SCRIPTS)


def json_for_page(content: Any) -> str:
    """JSON in which no text, such as `</script>`, can end the script element."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _text(name: str) -> str:
    return (files("sparsefront.results.page") / name).read_text(encoding="utf-8")


# Details of single runs on request: command, layers, mask pictures.
#
# A large comparison includes layers and pictures of the most interesting runs only, to stay responsive.

MOST_RUNS_WITH_LAYERS = 200
MOST_PICTURE_BYTES = 4_000_000  # of base64
PNG = b"\x89PNG\r\n\x1a\n"


def run_details(
    results: Sequence[Result], folder_of: Callable[[Result], Path | None], first: Iterable[Result]
) -> dict[str, Any]:
    """`commands` and `folders`, one entry per run; `layers` and `pictures`, by a run's index.

    Args:
        folder_of: returns the folder of a result's `row.json`, None if it is not available.
        first: results whose layers and pictures have priority, best first.
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
    """Index -> [{"name", "base64"}] of the PNG files below `masks/`, up to the page's limit."""
    pictures: dict[int, list[dict[str, str]]] = {}
    left = MOST_PICTURE_BYTES
    for place, folder in list(folders.items())[:MOST_RUNS_WITH_LAYERS]:
        embedded = [picture(file) for file in ([] if folder is None else sorted(folder.glob("masks/*.png")))]
        left -= sum(len(one["base64"]) for one in embedded)
        if left < 0:
            break
        embedded = [one for one in embedded if one["base64"]]
        if embedded:
            pictures[place] = embedded
    return pictures


def picture(file: Path) -> dict[str, str]:
    """A PNG file for a `data:` URL; empty if it is another file, such as a link to something private, or too large."""
    try:
        content = read_bytes_bounded(file, max_bytes=MOST_PICTURE_BYTES)
    except Unreadable:
        content = b""
    return {"name": file.stem, "base64": base64.b64encode(content).decode() if content.startswith(PNG) else ""}


def write_run_page(
    result: Result, path: Path, *, title: str, pictures: Sequence[Path] = (), axis: Axis = SPEEDUP
) -> Path:
    """Write the page atomically.

    Args:
        pictures: PNG files to embed at the end.
    """
    from markupsafe import Markup

    metric, sparsity = find_metric([result]), result.sparsity
    cells = {column.heading(metric): column.cell(result) for column in COLUMNS}
    cells["speedup"] += apart_from_medians(result)
    curve, collapsed = None, None
    if result.speed.curve:  # the other timed sizes
        plot = Markup(svg_text(curve_figure(result)))
        curve = {"plot": plot, "lines": curve_lines(result), "wins": wins_text(result)}
    if find_collapsed(result):
        allocation = plain(result.choice.allocation)
        collapsed = collapse_warning(sparsity.sparsity_per_layer, sparsity.sparsity_target, allocation)
    return write_page(
        path,
        "run.html.jinja",
        title=title,
        plot=Markup(svg_text(pareto_figure(split_comparable([result], axis)))),
        values=[{"": heading, "value": text} for heading, text in cells.items() if text != "–"],
        details=[
            {"": words, "value": value, "field of the result": field}
            for section in run_lines(result)
            for words, value, field in section
        ],
        command=run_command(result, path.parent),
        provenance=provenance(result),
        curve=curve,
        served=serving_lines([result], read_all_serving([result], lambda _: path.parent)),
        layers=layer_lines(result),
        collapsed=collapsed,
        pictures=[picture(file) for file in pictures],
    )
