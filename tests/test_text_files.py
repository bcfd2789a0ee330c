"""Every text that a file or another program holds is read and written in an encoding that the code names.

Python's own choice follows the locale, so that a table written on one machine would be misread, or not at all, on another.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sorted(
    [*(file for part in ("src", "kernels", "experiments") for file in (ROOT / part).rglob("*.py")), *ROOT.glob("*.py")]
)
TEXT_CALLS = ("open", "fdopen", "read_text", "write_text", "TextIOWrapper", "FileHandler")
OTHERS = ("os.open", "Image.open", "archive.open")  # none of them opens text


def without_encoding(code: str) -> Iterator[int]:
    """Lines of calls that leave the encoding of a text to the locale."""
    for call in ast.walk(ast.parse(code)):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) in OTHERS:
            continue
        given = {keyword.arg for keyword in call.keywords}
        if None in given or "encoding" in given:
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        flags = {one.arg for one in call.keywords if isinstance(one.value, ast.Constant) and one.value.value is True}
        if (name in TEXT_CALLS and not opens_bytes(call)) or {"text", "universal_newlines"} & flags:
            yield call.lineno


def opens_bytes(call: ast.Call) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Constant) and value.value in ("rb", "wb", "ab", "xb", "rb+") for value in values)


def test_every_text_names_its_encoding():
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in PYTHON
        for line in without_encoding(file.read_text(encoding="utf-8"))
    ]
    assert len(PYTHON) > 300
    assert not found, "name the encoding: " + ", ".join(found)
