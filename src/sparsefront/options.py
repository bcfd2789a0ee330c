"""Look up options by name, in our packages and in files; names of the program's commands; packages that options need."""

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

from sparsefront.errors import InvalidSetting, Obstacle, did_you_mean, failure_reason

# Options of a package: every class in its modules that defines `name`; and classes named in files.

OWN = "sparsefront"
PACKAGE = Path(__file__).resolve().parent
CONF = (PACKAGE / "conf").resolve()
"""Our configuration groups: a link into the repository, or a folder of the installed package."""
TARGET = "_target_"
"""The key of the class in a configuration, and in an option's record."""


@cache
def option_classes(package: str) -> dict[str, type]:
    """Name of an option -> its class, sorted by module name.

    Args:
        package: dotted name, such as sparsefront.patterns; all of its modules are imported.
    """
    folders = importlib.import_module(f"{package}").__path__
    modules = sorted(module.name for module in pkgutil.iter_modules(folders))
    classes: dict[str, type] = {}
    for name in modules:
        module = importlib.import_module(f"{package}.{name}")
        for value in vars(module).values():
            if not inspect.isclass(value) or inspect.isabstract(value) or value.__module__ != module.__name__:
                continue
            option = vars(value).get("name")
            if isinstance(option, str):
                classes[option] = value
    return classes


def options_where(package: str, holds: Callable[[Any], bool]) -> list[str]:
    """Names of a package's options for which `holds` is true with default settings, for messages."""
    names = []
    for name, kind in option_classes(package).items():
        if not any(p.default is p.empty for p in inspect.signature(kind).parameters.values()) and holds(kind()):
            names.append(name)
    return names


def option_class(package: str, attribute: str) -> type:
    """An option's class by its class name, for the `__getattr__` of a package.

    Raises:
        AttributeError: no option has this class; the message lists the classes.
    """
    if not attribute[:1].isupper():  # `from package import module` calls `__getattr__`, too
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}")
    classes = {option_type.__name__: option_type for option_type in option_classes(package).values()}
    if attribute not in classes:
        raise AttributeError(f"module {package!r} has no attribute {attribute!r}; its options are {', '.join(classes)}")
    setattr(sys.modules[package], attribute, classes[attribute])
    return classes[attribute]


def class_named(
    name: object, base: type, *, trust: Iterable[str] | None = (), key: str = TARGET, taker: str | None = None
) -> type:
    """The class named in a file. Nothing is called, and of an untrusted file only modules of sparsefront and of `trust` are
    imported.

    Args:
        name: from the file, package.module.Class.
        base: required base class, such as `patterns.base.Pattern`.
        trust: other packages or modules that may be imported, which runs their code; None: any, as in the user's own files.
        key, taker: of the name, and what needs the class, for messages.
    Raises:
        InvalidSetting: no class name, a package that is not trusted, or a class that is abstract or does not derive from `base`.
    """
    shown, how = shorten(name), "package.module.Class"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name, flags=re.ASCII):
        raise InvalidSetting(key, shown, f"must be the full name of a class, {how}")
    module, _, attribute = name.rpartition(".")
    if trust is not None and not is_trusted(module, trust):
        package = module.partition(".")[0]
        allowed = (
            f"is no class of {OWN}, and a class from a file is imported only where its package is trusted: "
            f'trust=["{package}"] imports it, which runs the code of that package on this machine'
        )
        raise InvalidSetting(key, shown, allowed)
    try:
        target = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing a user's module may fail in any way
        remedy = f"name a class as {how}; its package must be installed, or its folder be on PYTHONPATH"
        raise InvalidSetting(key, shown, f"cannot be imported ({failure_reason(error)}); {remedy}") from error
    if not isinstance(target, type):
        raise InvalidSetting(key, shown, f"is no class; {how} is expected")
    missing = [*sorted(getattr(target, "__abstractmethods__", ())), *_unset_class_variables(target)]
    if missing:
        raise InvalidSetting(key, shown, f"does not define {', '.join(missing)}, which {taker or base.__name__} needs")
    if not issubclass(target, base):
        raise InvalidSetting(key, shown, f"must derive from {base.__module__}.{base.__name__}")
    return target


def _unset_class_variables(target: type) -> list[str]:
    """ClassVars that a base class declares without a value and no subclass sets: `name`, `kinds`."""
    hints = [hint for base in target.__mro__ for hint in vars(base).get("__annotations__", {}).items()]
    return sorted({name for name, hint in hints if "ClassVar" in str(hint) and not hasattr(target, name)})


def is_trusted(module: str, trust: Iterable[str] = ()) -> bool:
    """Whether a module belongs to sparsefront or to a trusted package or module."""
    return any(f"{module}.".startswith(f"{package}.") for package in (OWN, *trust) if package)


def target_values(value: Any) -> Iterator[Any]:
    """Yield all values of `_target_` keys, at any depth of plain containers."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if key == TARGET:
                yield entry
            yield from target_values(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from target_values(entry)


def shorten(name: object, most: int = 200) -> str:
    """Truncate a text from a file, for a message."""
    text = str(name)
    return text if len(text) <= most else f"{text[:most]}..."


Option = TypeVar("Option")


def option(argument: str, given: object, kind: type[Option], **settings: object) -> Option:
    """Convert an argument to an option.

    Args:
        argument: name of the argument, for messages.
        given: an option, or the name of one, to build with its defaults and `settings`.
        kind: the base class, such as `patterns.base.Pattern`, in the package of its options.
        settings: for an option given by name; None values are dropped.
    Raises:
        InvalidSetting: another type, an unknown name, settings that contradict a given option, or settings that the option does
            not have.
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
        offered = [name for name, choice in classes.items() if issubclass(choice, kind)]
        allowed = f"is one of {', '.join(offered)}, or a {kind.__name__}"
        hint = did_you_mean(given, offered) if isinstance(given, str) else ""
        raise InvalidSetting(argument, given, f"{hint}it {allowed}" if hint else allowed)
    choice = classes[given]
    taken = inspect.signature(choice).parameters
    for name in set_here.keys() - taken.keys():
        raise InvalidSetting(name, set_here[name], f"{argument}={given} takes no {name}")
    try:
        made = choice(**set_here)
    except TypeError as error:
        raise InvalidSetting(argument, given, f"needs settings: give a {choice.__name__}(...) ({error})") from error
    assert isinstance(made, kind)  # by the convention of option packages
    return made


IN_REPOSITORY = {
    "run": "python run.py",
    "compare": "python compare.py",
    "verify": "python -m sparsefront.verify",
    "cache": "python -m sparsefront.cache",
    "build": "python -m sparsefront_kernels.build",
}


def program_command(name: str) -> str:
    """A command as a user types it here: `sparsefront run` or `python -m sparsefront run` if the process was started so, else
    `python run.py` in the repository and `sparsefront run` for an installation.

    Args:
        name: run, compare, verify, cache or build.
    """
    started = Path(sys.argv[0] if sys.argv else "")
    if started.name == "__main__.py" and started.resolve().parent == PACKAGE:
        return f"python -m {OWN} {name}"
    if started.stem == OWN or CONF.is_relative_to(PACKAGE):
        return f"{OWN} {name}"
    return IN_REPOSITORY[name]


def install_extra(extra: str) -> str:
    """The command that installs an extra, in the checkout or for an installation."""
    if CONF.is_relative_to(PACKAGE):
        return f'pip install "{OWN}[{extra}]"'
    return f'pip install -e ".[{extra}]" in the checkout'


# Python packages that only some settings need, checked before a run starts.

# import name -> name on PyPI, where they differ
PIP_NAMES = {"sklearn": "scikit-learn", "pytorch_lightning": "pytorch-lightning", "hydra": "hydra-core"}
PROGRAM = ("hydra", "omegaconf", "pytorch_lightning", "torchmetrics", "rich")  # no command works without them
OURS = ("sparsefront", "sparsefront_kernels")


def require_package(package: str, *, key: str, value: object, instead: str) -> None:
    """Check that a setting's package is installed, without importing it.

    Args:
        package: its name, the same for import and pip.
        key, value: the setting that needs it.
        instead: the alternative, for the message.
    Raises:
        InvalidSetting: it is not installed; says how to install it, and `instead`.
    """
    if importlib.util.find_spec(package) is None:
        allowed = f"the package {package} is not installed: pip install {package}, or choose {instead}"
        raise InvalidSetting(key, value, allowed)


def missing_package(error: ModuleNotFoundError) -> Obstacle | None:
    """The error in one line, with the command to install the package; None for our own modules, whose absence is a bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package in OURS:
        return None
    command = install_extra("run") if package in PROGRAM else f"pip install {PIP_NAMES.get(package, package)}"
    return Obstacle(f"Python package {PIP_NAMES.get(package, package)}", None, f"is not installed: {command}")
