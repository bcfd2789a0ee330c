"""An argument that names an option, or is one."""

import inspect
from typing import TypeVar

from sparsefront.errors import InvalidSetting
from sparsefront.option_classes import option_classes

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
        offered = ", ".join(name for name, found in classes.items() if issubclass(found, kind))
        raise InvalidSetting(argument, given, f"is one of {offered}, or a {kind.__name__}")
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
