"""Check settings against the source of their class, before torch and Lightning are imported, which takes seconds.

Only what the source shows without running it is used: names and types of a settings class and its bases, if all are ours.
Types that need more than literals, typing and pydantic are skipped; `validate` imports the class and checks everything.
"""

import ast
import builtins
import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.config.schema import GROUPS
from sparsefront.config.settings import KEYS_OF_THE_RUN, named_as_typed, nothing_chosen
from sparsefront.errors import keys_of
from sparsefront.options import OWN, TARGET
from sparsefront.settings_class import checked_against

ROOT = Path(__file__).parent.parent
LIGHT = ("abc", "annotated_types", "collections", "pathlib", "pydantic", "typing", "typing_extensions")
"""Packages imported for reading a type; of ours, only the module that declares types of settings."""
LIGHT += (f"{OWN}.settings_class",)


def check_declared(config: DictConfig, choices: Mapping[str, str], folders: Sequence[Path]) -> None:
    """Check each group value against the type in the source of its class; skips what the source does not show.

    Args:
        choices: group -> name of its option.
        folders: Hydra's config folders.
    Raises:
        InvalidSetting: the first unknown key, or value with a wrong type or out of range, with the message that importing
            the class would give.
    """
    for group in GROUPS:
        node = config.get(group)
        if not node:
            raise nothing_chosen(group, node)
        if not OmegaConf.is_dict(node) or not isinstance(name := node.get(TARGET), str):
            continue
        declared = declared_types(name)
        if declared is None:
            continue
        try:
            values = OmegaConf.to_container(node, resolve=True)
        except OmegaConfBaseException:
            continue
        assert isinstance(values, dict)
        own = {key: value for key, value in values.items() if key not in (TARGET, *KEYS_OF_THE_RUN.get(group, ()))}
        with named_as_typed(config, choices, folders), keys_of(group):
            checked_against(declared, own, taker=group)


@cache
def declared_types(name: str) -> dict[str, Any] | None:
    """Settings of one of our classes -> their types, `Any` for those that only running the module shows.

    Args:
        name: package.module.Class.
    Returns:
        None if the class, or one of its bases, is not ours or not found.
    """
    module, _, kind = name.rpartition(".")
    source = _source(module)
    fields = None if source is None else source.fields(kind)
    return None if fields is None else fields[0] | fields[1]


@cache
def _source(module: str) -> "_Source | None":
    """One of our modules, parsed; None for others."""
    if not f"{module}.".startswith(f"{OWN}."):
        return None
    file = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return _Source(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else None


CALLS_IN_TYPES = ("Field", "Strict", "AfterValidator", "tuple", "list")


class _Unknown(Exception):
    """Raised for values that only running the module would show."""


class _Source(Mapping[str, Any]):
    """The names of a parsed module, evaluated on access: the namespace for evaluating types."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, ast.expr] = {}
        self._imports: dict[str, tuple[str, str]] = {}  # name -> (module, name in it)
        for node in tree.body:
            match node:
                case ast.ClassDef():
                    self._classes[node.name] = node
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self._values[name] = node.value
                case ast.ImportFrom(module=str(module)):
                    self._imports |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}

    def fields(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Positional and keyword-only fields of a class in the order of its `__init__`: those of bases first."""
        if kind in self._imports:
            module, name = self._imports[kind]
            source = _source(module)
            return None if source is None else source.fields(name)
        definition = self._classes.get(kind)
        if definition is None:
            return None
        by_position: dict[str, Any] = {}
        by_keyword: dict[str, Any] = {}
        for base in reversed(definition.bases):  # the order of dataclasses
            if isinstance(base, ast.Name) and base.id in ("ABC", "Protocol"):
                continue
            inherited = self.fields(base.id) if isinstance(base, ast.Name) else None
            if inherited is None:
                return None
            by_position, by_keyword = by_position | inherited[0], by_keyword | inherited[1]
        # a class that is not a dataclass only annotates attributes
        for node in definition.body if definition.decorator_list else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if "ClassVar" in ast.unparse(node.annotation):
                    continue
                marks = [*definition.decorator_list, *([] if node.value is None else [node.value])]
                alone = any("kw_only=True" in ast.unparse(mark) for mark in marks)
                (by_keyword if alone else by_position)[node.target.id] = self._type(node.annotation)
            elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return None
        return by_position, by_keyword

    def _type(self, annotation: ast.expr) -> Any:
        try:
            return self._evaluated(annotation)
        except Exception:  # any error in a source is raised again when the class is imported
            return Any

    def _evaluated(self, expression: ast.expr) -> Any:
        if isinstance(expression, ast.Dict):  # used only for its keys, while values may need the module
            return dict.fromkeys(self._evaluated(key) for key in expression.keys if key is not None)
        calls = [part.func for part in ast.walk(expression) if isinstance(part, ast.Call)]
        if not all(isinstance(function, ast.Name) and function.id in CALLS_IN_TYPES for function in calls):
            raise _Unknown
        return eval(compile(ast.Expression(expression), "<declared>", "eval"), {"__builtins__": {}}, self)

    def __getitem__(self, name: str) -> Any:
        if name in self._imports:
            module, attribute = self._imports[name]
            if module.startswith(LIGHT):
                return getattr(importlib.import_module(module), attribute)
            source = _source(module)
            if source is None:
                raise _Unknown
            return source[attribute]
        if name in self._values:
            return self._evaluated(self._values[name])
        if name in self._classes or not hasattr(builtins, name):
            raise _Unknown
        return getattr(builtins, name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._imports, *self._values))

    def __len__(self) -> int:
        return len(self._imports) + len(self._values)
