"""What `import sparsefront as sf` offers, and who may know of the program."""

import ast
import inspect
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import sparsefront as sf
from sparsefront.options import option_classes
from sparsefront.public_names import ORIGINS, PACKAGES

SOURCE = Path(sf.__file__).parent


def api_page() -> str:
    """Signatures and docstrings of all public names, for docs/api.md."""
    lines = ["# API", "", "From docstrings, by `python tests/library/test_public_names.py > docs/api.md`.", ""]
    for name in ORIGINS:
        value = getattr(sf, name)
        lines += [f"## {name}", "", "```text", *_call(name, value), "", inspect.getdoc(value), "```", ""]
    for package in PACKAGES:
        lines += [f"## {package}", "", "| option | class | what it does |", "| --- | --- | --- |"]
        for option, kind in option_classes(f"sparsefront.{package}").items():
            purpose = inspect.getdoc(kind).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            lines.append(f"| `{option}` | `sf.{package}.{kind.__name__}` | {purpose} |")
        lines.append("")
    return "\n".join(lines)


def _call(name: str, value: object) -> list[str]:
    """`sf.name(argument, option=default)`, wrapped."""
    words = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        default = parameter.default
        hidden = isinstance(default, Path) or str(default).startswith("<")  # paths differ from machine to machine
        text = getattr(default, "__name__", None) or ("..." if hidden else repr(default))
        text = "..." if "<lambda>" in text else text
        words.append(parameter.name if default is parameter.empty else f"{parameter.name}={text}")
    return textwrap.wrap(f"sf.{name}({', '.join(words)})", 110, subsequent_indent="    ", break_long_words=False)


def test_api_page_is_current():
    assert (SOURCE.parents[1] / "docs" / "api.md").read_text() == api_page(), (
        "its third line says how to write it again"
    )


def test_import_loads_no_torch():
    code = "import sys, sparsefront; print([name for name in ('torch', 'hydra', 'pytorch_lightning') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_documented():
    assert sorted(sf.__all__) == dir(sf) == sorted([*ORIGINS, *PACKAGES])
    for name in ORIGINS:
        value = getattr(sf, name)
        assert value.__doc__, name
        if not isinstance(value, type):
            hints = typing.get_type_hints(value)
            code = value.__code__
            named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            assert {*named, "return"} <= hints.keys(), name
            assert all(f"{argument}" in value.__doc__ for argument in named), name


def test_every_option_is_offered():
    conf = SOURCE.parents[1] / "conf"
    for package, group in {
        "patterns": "pattern",
        "importance": "importance",
        "allocation": "allocation",
        "schedule": "schedule",
        "recovery": "recovery",
    }.items():
        offered = option_classes(f"sparsefront.{package}")
        own = {file.stem for file in (conf / group).glob("*.yaml")}
        assert own <= set(offered) <= own | {file.stem for file in (conf / "structured").glob("*.yaml")}
        for found in offered.values():
            assert getattr(getattr(sf, package), found.__name__) is found


def test_no_field_is_typed_any():
    for file in sorted(SOURCE.rglob("*.py")):
        if (
            file.name == "schema.py"
        ):  # the fields of config/schema.py are nodes of YAML: Hydra has no other word for any option
            continue
        classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        fields = [field for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
        assert not [ast.unparse(field.target) for field in fields if ast.unparse(field.annotation) == "Any"], file


if __name__ == "__main__":
    print(api_page(), end="")
