"""From a node of the configuration to the settings object that its `_target_` names, with every key and value checked."""

import dataclasses
import importlib
import inspect
import typing
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from sparsefront.declared.settings_class import rejection
from sparsefront.declared.values import checked_values
from sparsefront.errors import InvalidSetting, UnknownKey, first_line, keys_of

KEYS_OF_THE_RUN = {"recovery": ("seed",)}
"""Keys of a group that conf/config.yaml adds to whichever option is chosen, and the run reads itself."""


def build_settings(group: str, node: DictConfig | None, chosen: str | None = None) -> Any:
    """Instantiate a group's settings.

    Args and Raises: as `typed_settings`, and InvalidSetting for values that the class itself rejects.
    """
    target, values = typed_settings(group, node, chosen)
    with keys_of(group):
        try:
            return target(**values)
        except ValidationError as error:  # of a user's own class that pydantic checks
            raise rejection(error, values, _parameters(target)) from error


def typed_settings(group: str, node: DictConfig | None, chosen: str | None = None) -> tuple[type, dict[str, Any]]:
    """The class of a group's settings and their values, each checked by its own type and range.

    Args:
        group: name of the group, for messages.
        node: its configuration, with `_target_` and that class's parameters.
        chosen: name of the option, for messages.
    Raises:
        InvalidSetting: nothing chosen, a class that cannot be imported, a key that the class does not take, a value of the
            wrong type, NaN or infinity; the key is written from the root.
    """
    if chosen is not None and (node is None or (OmegaConf.is_dict(node) and "_target_" not in node)):
        line = "its file lacks the line `_target_: package.module.Class`, which names the class of the option"
        raise InvalidSetting(group, chosen, line)
    if node is None or not OmegaConf.is_config(node) or "_target_" not in node:
        raise InvalidSetting(
            group, node, f"choose an option of the group: {group}=NAME; python run.py --help lists them"
        )
    try:
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        key = (error.full_key or "").removeprefix(f"{group}.")
        given = OmegaConf.to_container(node, resolve=False).get(key)
        raise InvalidSetting(f"{group}.{key}", given, first_line(error)) from error
    values = {key: value for key, value in values.items() if key not in KEYS_OF_THE_RUN.get(group, ())}
    target = _target_class(group, values.pop("_target_"))
    accepted = _parameters(target)
    for key, value in values.items():
        if key not in accepted:
            raise UnknownKey(f"{group}.{key}", value, f"unknown key; {group} takes {', '.join(accepted) or 'no keys'}")
    for key in _missing(target, values):
        raise InvalidSetting(f"{group}.{key}", None, f"is required by {target.__name__}: set {group}.{key}")
    with keys_of(group):
        # A class that is no settings class, as one of a user's own may be, would take any type.
        return target, checked_values(values, accepted)


def _target_class(group: str, name: Any) -> type:
    """The class that a `_target_` names, which may belong to a package of the user's own."""
    key = f"{group}._target_"
    if not isinstance(name, str):
        raise InvalidSetting(key, name, "must be the full name of a class, package.module.Class")
    module, _, attribute = name.rpartition(".")
    try:
        # Not Hydra's get_class, which logs several lines of advice, and none where the module's own imports fail.
        target = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the user's module itself, of any kind
        said = first_line(error)
        reason = said if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {said}"
        remedy = "name a class as package.module.Class; its package must be installed, or its folder be on PYTHONPATH"
        raise InvalidSetting(key, name, f"cannot be imported ({reason}); {remedy}") from error
    if not isinstance(target, type):
        raise InvalidSetting(key, name, "is no class; package.module.Class is expected")
    if missing := [*sorted(getattr(target, "__abstractmethods__", ())), *_unset_class_variables(target)]:
        raise InvalidSetting(key, name, f"does not define {', '.join(missing)}, which {group} needs")
    return target


def _unset_class_variables(target: type) -> list[str]:
    """Names that a base class declares as ClassVar without a value, and no class below it sets: `name`, `kinds`."""
    declared = {
        name
        for base in target.__mro__
        for name, hint in vars(base).get("__annotations__", {}).items()
        if "ClassVar" in str(hint)
    }
    return sorted(name for name in declared if not hasattr(target, name))


def _parameters(target: type) -> dict[str, Any]:
    """What a class takes: name -> type hint, `Any` where it has none."""
    holder = target if dataclasses.is_dataclass(target) else target.__init__
    hints = typing.get_type_hints(holder, include_extras=True)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(target).parameters.values()
    return {parameter.name: hints.get(parameter.name, Any) for parameter in parameters if parameter.kind in named}


def _missing(target: type, values: dict[str, Any]) -> list[str]:
    """Parameters without a default that no value is given for."""
    parameters = inspect.signature(target).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    return [name for name in _parameters(target) if name in required and name not in values]
