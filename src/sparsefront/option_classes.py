"""The options of a package: every class that its modules define with a `name` of its own; and classes that files name."""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from sparsefront.errors import InvalidSetting, first_line

OWN = "sparsefront"
TARGET = "_target_"
"""The key under which a configuration, and a record of an option, names the class."""


@cache
def option_classes(package: str) -> dict[str, type]:
    """Name of an option -> its class, in the order of the modules' names.

    Args:
        package: dotted name, such as sparsefront.patterns; all of its modules are imported.
    """
    folders = importlib.import_module(f"{package}").__path__
    modules = sorted(module.name for module in pkgutil.iter_modules(folders))
    found: dict[str, type] = {}
    for name in modules:
        module = importlib.import_module(f"{package}.{name}")
        for value in vars(module).values():
            if not inspect.isclass(value) or inspect.isabstract(value) or value.__module__ != module.__name__:
                continue
            if isinstance(option := vars(value).get("name"), str):
                found[option] = value
    return found


def options_where(package: str, holds: Callable[[Any], bool]) -> list[str]:
    """Names of the options of a package that have a property with their default settings, for messages."""
    found = []
    for name, kind in option_classes(package).items():
        if not any(p.default is p.empty for p in inspect.signature(kind).parameters.values()) and holds(kind()):
            found.append(name)
    return found


def option_class(package: str, attribute: str) -> type:
    """The option's class by the name of the class, for the `__getattr__` of a package.

    Raises:
        AttributeError: no option has this class; the message lists those there are.
    """
    if not attribute[:1].isupper():  # `from package import module` asks so too
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}")
    classes = {found.__name__: found for found in option_classes(package).values()}
    if attribute not in classes:
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}; its options are {', '.join(classes)}")
    setattr(sys.modules[package], attribute, classes[attribute])
    return classes[attribute]


def trusted_class(name: object, base: type, *, trust: Iterable[str] = (), key: str = TARGET) -> type:
    """The class that a file names, for files that somebody else may have written: nothing is called, and no module is
    imported but sparsefront's own and those that the caller trusts.

    Args:
        name: as the file has it, package.module.Class.
        base: what the class must derive from, such as `patterns.base.Pattern`.
        trust: packages or modules that may be imported besides, which runs their code.
        key: of the name, for the message.
    Raises:
        InvalidSetting: no name of a class, one from a package that is not trusted, or one that does not derive from `base`.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name, flags=re.ASCII):
        raise InvalidSetting(key, shortened(name), "is no full name of a class, package.module.Class")
    module, _, attribute = name.rpartition(".")
    if not is_trusted(module, trust):
        package = module.partition(".")[0]
        allowed = (
            f"is no class of {OWN}, and a class from a file is imported only where its package is trusted: "
            f'trust=["{package}"] imports it, which runs the code of that package on this machine'
        )
        raise InvalidSetting(key, shortened(name), allowed)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the trusted package's own module, of any kind
        said = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise InvalidSetting(
            key, shortened(name), f"{said}; its package must be installed, or be on PYTHONPATH"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, base)) or inspect.isabstract(found):
        raise InvalidSetting(key, shortened(name), f"is no {base.__name__}: it must derive from {base.__module__}")
    return found


def is_trusted(module: str, trust: Iterable[str] = ()) -> bool:
    """Whether a module is sparsefront's, or is or lies below one that is trusted."""
    return any(f"{module}.".startswith(f"{package}.") for package in (OWN, *trust) if package)


def classes_named_in(value: Any) -> Iterator[Any]:
    """What stands under `_target_`, at any depth of plain containers."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key == TARGET:
                yield entry
            yield from classes_named_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from classes_named_in(entry)


def shortened(name: object, most: int = 200) -> str:
    """A text from a file, for a message."""
    text = str(name)
    return text if len(text) <= most else f"{text[:most]}..."
