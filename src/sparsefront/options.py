"""Options by their names: those of a package, those that files name, and the packages that some of them need. And the names of
the program's own commands, as this process was started.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sparsefront.errors import InvalidSetting, Obstacle, did_you_mean, first_line

# The options of a package: every class that its modules define with a `name` of its own; and classes that files name.

OWN = "sparsefront"
CONF = (Path(__file__).parent / "conf").resolve()
"""Our groups of options: a link into the repository, a folder of the package where it is installed."""
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


Option = TypeVar("Option")


def option(argument: str, given: object, kind: type[Option], **settings: object) -> Option:
    """The option that an argument means.

    Args:
        argument: its name; `kind` lies in the package that holds all options of its sort.
        given: an option as it is, or the name of one, made with its defaults and `settings`.
        kind: the base class, such as `patterns.base.Pattern`.
        settings: of an option given by name; those that are None, or that the option does not take, are left out.
    Raises:
        InvalidSetting: another type, an unknown name, settings beside an option that has its own, or settings that the
            option does not take.
    """
    package = kind.__module__.rpartition(".")[0]
    set_here = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given, kind):
        for name, value in set_here.items():
            if getattr(given, name, None) != value:
                raise InvalidSetting(name, value, f"give it to {type(given).__name__}(...), not beside {argument}=")
        return given
    classes = option_classes(package)
    if not isinstance(given, str) or given not in classes:
        offered = [name for name, found in classes.items() if issubclass(found, kind)]
        allowed = f"is one of {', '.join(offered)}, or a {kind.__name__}"
        hint = did_you_mean(given, offered) if isinstance(given, str) else ""
        raise InvalidSetting(argument, given, f"{hint}it {allowed}" if hint else allowed)
    found = classes[given]
    taken = inspect.signature(found).parameters
    for name in set_here.keys() - taken.keys():
        raise InvalidSetting(name, set_here[name], f"{argument}={given} takes no {name}")
    try:
        made = found(**set_here)
    except TypeError as error:
        raise InvalidSetting(argument, given, f"needs settings: give a {found.__name__}(...) ({error})") from error
    assert isinstance(made, kind)  # every option of the package is one
    return made


# The program's commands, for messages that name one.

IN_REPOSITORY = {
    "run": "python run.py",
    "compare": "python compare.py",
    "verify": "python -m sparsefront.verify",
    "cache": "python -m sparsefront.cache",
}


def program_command(name: str) -> str:
    """A command as it is typed here: `sparsefront run` or `python -m sparsefront run` where the process was started so, else
    `python run.py` in the repository and `sparsefront run` of an installation.

    Args:
        name: run, compare, verify or cache.
    """
    package, started = Path(__file__).resolve().parent, Path(sys.argv[0] if sys.argv else "")
    if started.resolve() == package / "__main__.py":
        return f"python -m {OWN} {name}"
    if started.stem == OWN or CONF.is_relative_to(package):
        return f"{OWN} {name}"
    return IN_REPOSITORY[name]


def install_extra(extra: str) -> str:
    """What installs an extra of the program: from the checkout, or beside an installation."""
    if CONF.is_relative_to(Path(__file__).resolve().parent):
        return f'pip install "{OWN}[{extra}]"'
    return f'pip install -e ".[{extra}]" in the checkout'


# Python packages that only some settings need: missed before a run starts, not when it would use them.

# packages that are installed under another name than they are imported by
PIP_NAMES = {"sklearn": "scikit-learn", "pytorch_lightning": "pytorch-lightning"}
OURS = ("sparsefront", "sparsefront_kernels")


def require_package(package: str, *, key: str, value: object, instead: str) -> None:
    """Require the package of a setting; it is looked for, not imported.

    Args:
        package: its name, for import and for pip alike.
        key, value: the setting that needs it.
        instead: what to choose without it.
    Raises:
        InvalidSetting: it is not installed; says how to install it, and `instead`.
    """
    if importlib.util.find_spec(package) is None:
        allowed = f"the package {package} is not installed: pip install {package}, or choose {instead}"
        raise InvalidSetting(key, value, allowed)


def missing_package(error: ModuleNotFoundError) -> Obstacle | None:
    """The same in one line, with what installs it; None for a module of ours, whose absence is a bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package in OURS:
        return None
    package = PIP_NAMES.get(package, package)
    return Obstacle(f"Python package {package}", None, f"is not installed: pip install {package}")
