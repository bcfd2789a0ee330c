"""The options of a package: every class that its modules define with a `name` of its own."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


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
