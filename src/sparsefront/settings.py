"""From a node of the configuration to the settings object that its `_target_` names, with every key and type checked."""

import dataclasses
import importlib
import inspect
import math
import types
import typing
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.errors import InvalidSetting, UnknownKey, first_line

KEYS_OF_THE_RUN = {"recovery": ("seed",)}
"""Keys of a group that conf/config.yaml adds to whichever option is chosen, and the run reads itself."""


def build_settings(group: str, node: DictConfig | None) -> Any:
    """Instantiate a group's settings.

    Args:
        group: name of the group, for messages.
        node: its configuration, with `_target_` and that class's parameters.
    Raises:
        InvalidSetting: nothing chosen, a class that cannot be imported, a key that the class does not take, a value of the
            wrong type, NaN or infinity, or one that the class itself rejects; the key is written from the root.
    """
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
        if not _fits(value, accepted[key]):
            raise InvalidSetting(f"{group}.{key}", value, f"must be {_in_words(accepted[key])}")
        if not _finite(value):
            raise InvalidSetting(f"{group}.{key}", value, "must be a finite number, not NaN or infinity")
    for key in _missing(target, values):
        raise InvalidSetting(f"{group}.{key}", None, f"is required by {target.__name__}: set {group}.{key}")
    try:
        return target(**values)
    except InvalidSetting as error:
        raise error.within(group) from error


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
    hints = typing.get_type_hints(target if dataclasses.is_dataclass(target) else target.__init__)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(target).parameters.values()
    return {parameter.name: hints.get(parameter.name, Any) for parameter in parameters if parameter.kind in named}


def _missing(target: type, values: dict[str, Any]) -> list[str]:
    """Parameters without a default that no value is given for."""
    parameters = inspect.signature(target).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    return [name for name in _parameters(target) if name in required and name not in values]


def _finite(value: Any) -> bool:
    """False for NaN and infinity, also inside of a list. No setting means anything by them."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value (from YAML) matches a type hint; an int passes for a float, a bool for neither."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if hint is None or hint is type(None):
        return value is None
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_in_words(option) for option in arguments)
    if hint is type(None):
        return "null"
    if origin in (list, tuple):
        return f"a list of {_in_words(arguments[0])}"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(hint, str(hint))
