"""The templates of the pages, filled in; style and scripts are files beside them and become part of each page."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparsefront.artifacts.durable import whole_file

# In this order: later ones use what earlier ones define.
SCRIPTS = "data text front picked address symbols scale chart charts filters budget table details download main".split()


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write a page, whole or not at all; its folder is made. Values are escaped, unless they are `Markup`."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("sparsefront.report", "page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template(template).render(style=Markup(_text("style.css")), **values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8", errors="backslashreplace")  # half a character in a name
    return path


def script_text() -> str:
    """All of the comparison's JavaScript."""
    return "\n".join(_text(f"script/{name}.js") for name in SCRIPTS)


def json_for_page(content: Any) -> str:
    """JSON that no text inside it can end early, as `</script>` would."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _text(name: str) -> str:
    return (files("sparsefront.report.page") / name).read_text(encoding="utf-8")
