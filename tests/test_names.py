"""Local variables are named after what they hold, not after where it came from; names of tests are short."""

import re
import symtable
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = {"found", "kept", "told", "wanted", "given", "named", "gone"}


def sources() -> dict[Path, str]:
    files = (file for part in ("src", "kernels", "experiments") for file in sorted((ROOT / part).rglob("*.py")))
    return {file: file.read_text(encoding="utf-8") for file in files}


def local_names(table: symtable.SymbolTable) -> Iterator[tuple[str, int]]:
    """Names that functions assign, but for their parameters, each with the function's line."""
    for inner in table.get_children():
        if inner.get_type() == "function":
            assigned = (one for one in inner.get_symbols() if one.is_assigned() and not one.is_parameter())
            yield from ((one.get_name(), inner.get_lineno()) for one in assigned)
        yield from local_names(inner)


def test_no_local_variable_is_a_participle():
    assert set(local_names(symtable.symtable("def f(given):\n    given, found = 1, 2", "", "exec"))) == {("found", 1)}
    places = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file, text in sources().items()
        if WORDS & set(re.findall(r"\w+", text))
        for name, line in local_names(symtable.symtable(text, str(file), "exec"))
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
    count, lines = (sum(text.count(part) for text in texts) for part in (" := ", "\n"))
    assert lines > 50_000 and 1000 * count <= 1.5 * lines, f"{count} := in {lines} lines: assign before"
