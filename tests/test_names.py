"""Local variables are named after what they hold, not after where it came from; names of tests are short."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = {"found", "kept", "told", "wanted", "given", "named", "gone"}


def sources() -> dict[Path, str]:
    files = (file for part in ("src", "kernels", "experiments") for file in sorted((ROOT / part).rglob("*.py")))
    return {file: file.read_text(encoding="utf-8") for file in files}


def local_names(tree: ast.AST) -> set[tuple[str, int]]:
    """Names that functions assign, but for their parameters, with a line each."""
    names = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            parameters = {one.arg for one in ast.walk(function) if isinstance(one, ast.arg)}
            stored = (one for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
            names |= {(one.id, one.lineno) for one in stored if one.id not in parameters}
    return names


def test_no_local_variable_is_a_participle():
    trees = {file: ast.parse(text) for file, text in sources().items() if WORDS & set(re.findall(r"\w+", text))}
    assert local_names(ast.parse("def f(given):\n    given, found = 1, 2")) == {("found", 2)}
    places = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file, tree in trees.items()
        for name, line in local_names(tree)
        if name in WORDS
    ]
    assert not places, "name it after what it is: " + ", ".join(sorted(places))


def test_names_of_tests_are_short():
    """`test_<subject>_<condition>`, at most six words after `test_`."""
    functions = [
        (file, name)
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(functions) > 1000
    places = [f"{file.relative_to(ROOT)} {name}" for file, name in functions if len(name.split("_")) > 7]
    assert not places, "at most six words after test_: " + ", ".join(places)


def test_assignments_in_expressions_are_few():
    """At most 1.5 in a thousand lines: only where one saves a line and a thought."""
    texts = sources().values()
    trees = [ast.parse(text) for text in texts if ":=" in text]
    count = sum(isinstance(node, ast.NamedExpr) for tree in trees for node in ast.walk(tree))
    lines = sum(text.count("\n") for text in texts)
    assert lines > 50_000 and 1000 * count <= 1.5 * lines, f"{count} := in {lines} lines: assign before"
