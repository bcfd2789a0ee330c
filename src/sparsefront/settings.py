"""From a node of the configuration to the settings object that its `_target_` names, with every key and type checked."""

import inspect
import types
import typing
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.errors import InvalidSetting, UnknownKey


def build_settings(group: str, node: DictConfig | None) -> Any:
    """Instantiate a group's settings.

    Args:
        group: name of the group, for messages.
        node: its configuration, with `_target_` and that class's parameters.
    Raises:
        InvalidSetting: nothing chosen, a key that the class does not take, a value of the wrong type, or one that the class
            itself refuses; the key is written from the root.
    """
    if node is None or not OmegaConf.is_config(node) or "_target_" not in node:
        raise InvalidSetting(
            group, node, f"choose an option of the group: {group}=NAME; python run.py --help lists them"
        )
    try:
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise InvalidSetting(group, OmegaConf.to_container(node, resolve=False), str(error).splitlines()[0]) from error
    target = get_class(values.pop("_target_"))
    hints = typing.get_type_hints(target)
    accepted = {key: hints[key] for key in inspect.signature(target).parameters}
    for key, value in values.items():
        if key not in accepted:
            raise UnknownKey(f"{group}.{key}", value, f"unknown key; {group} takes {', '.join(accepted) or 'no keys'}")
        if not _fits(value, accepted[key]):
            raise InvalidSetting(f"{group}.{key}", value, f"must be {_in_words(accepted[key])}")
    try:
        return target(**values)
    except InvalidSetting as error:
        raise error.within(group) from error


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
