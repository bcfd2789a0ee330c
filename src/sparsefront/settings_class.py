"""Settings that declare what each field may hold: pydantic checks them, and one line says what it rejects."""

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from sparsefront.errors import InvalidSetting, UnknownKey, did_you_mean

# Types of settings that several classes share; `pydantic` itself has PositiveInt, NonNegativeFloat and the like.

Item = TypeVar("Item")

Fraction = Annotated[float, Field(ge=0, lt=1)]
"""In [0, 1): of zeros, or of something that must not be used up."""
LearningRate = Annotated[float, Field(gt=0, le=1000)]
"""A peak rate; beyond the bound no training converges, and weights soon overflow."""
Share = Annotated[float, Field(ge=0, le=1)]
"""In [0, 1]."""
ListOf = Annotated[list[Item], Strict(False)]
"""`ListOf[int]`: from Python a tuple will do as well."""
OneOrMore = Annotated[list[Item], Strict(False), Field(min_length=1)]
"""`OneOrMore[int]`: the same, not empty."""


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return expression


Expression = Annotated[str, AfterValidator(_compiles)]
"""A regular expression, as text."""


# What a type hint allows, in plain words: `a whole number of at least 1 or null`.

NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


def in_words(hint: Any) -> str:
    """What a value of this type may be.

    Args:
        hint: of a field, with its `Annotated` constraints. A description in `Field(description=...)` is added in brackets.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(option) for option in arguments)
    if origin is Literal:
        return _listed(map(str, arguments))
    if origin in (list, tuple):
        return f"a list of {_several(arguments[0])}"
    return NOUNS.get(hint, str(hint))


def _several(hint: Any) -> str:
    """Items of a list."""
    if get_origin(hint) is Literal:
        return f"names out of {', '.join(map(str, get_args(hint)))}"
    words = in_words(hint)
    for one, several in SEVERAL.items():
        words = words.replace(one, several, 1)
    return words


def _annotated(base: Any, notes: Iterable[Any]) -> str:
    fields = [note for note in notes if isinstance(note, FieldInfo)]
    constraints = [*(note for field in fields for note in field.metadata), *notes]
    words = in_words(base)
    if any(isinstance(note, MinLen) for note in constraints):
        words = words.replace("a list of", "a list of one or more", 1)
    if bounds := _whole_bounds(constraints) if base is int else _bounds(constraints):
        null = " or null" if words.endswith(" or null") else ""
        words = f"{words.removesuffix(null)} {bounds}{null}"
    described = next((field.description for field in fields if field.description), None)
    return words if described is None else f"{words} ({described})"


def _bounds(constraints: Iterable[Any]) -> str:
    """`of at least 0 and below 1`, `from 0 to 1`."""
    limits = dict(_limits(constraints))
    if limits.keys() == {"of at least", "at most"}:
        return f"from {limits['of at least']} to {limits['at most']}"
    return " and ".join(f"{side} {limit}" for side, limit in limits.items())


def _whole_bounds(constraints: Iterable[Any]) -> str:
    """The same of whole numbers, of which 1 is the least above 0."""
    whole = {Gt: lambda note: Ge(note.gt + 1), Lt: lambda note: Le(note.lt - 1)}
    return _bounds([whole[type(note)](note) if type(note) in whole else note for note in constraints])


def _limits(constraints: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for note in constraints:
        match note:
            case Ge(limit):
                yield "of at least", limit
            case Gt(limit):
                yield "greater than", limit
            case Le(limit):
                yield "at most", limit
            case Lt(limit):
                yield "below", limit


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return " or ".join(found) if len(found) < 3 else f"one of {', '.join(found)}"


Class = TypeVar("Class", bound=type)

# A whole number passes for a float, and nothing else for anything else. Unknown arguments are errors.
STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_class(*, kw_only: bool = False) -> Callable[[Class], Class]:
    """Make a class a frozen dataclass whose values are checked against the types of its fields.

    A type says all that one field may hold: `PositiveInt`, `Literal["l1", "l2"]`, `Annotated[float, Field(ge=0, lt=1)]`.
    What several fields must obey together stays a check in `__post_init__`, which runs once each field is right.

    Raises, when an instance is made:
        InvalidSetting: the first field that is wrong, its value, and what its type allows.
        TypeError: an argument that is missing or unknown.
    """

    def decorate(kind: Class) -> Class:
        made = dataclass(frozen=True, kw_only=kw_only, config=STRICT)(kind)
        made.__init__ = _in_one_line(made.__init__, inspect.signature(made), made)
        del made.__signature__  # a plain dataclass that derives from this one would inherit it
        return made

    return decorate


def _in_one_line(checked_init: Callable[..., None], signature: inspect.Signature, kind: type) -> Callable[..., None]:
    """`__init__` with InvalidSetting instead of pydantic's error."""

    @functools.wraps(checked_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            checked_init(self, *args, **kwargs)
        except ValidationError as error:
            given = signature.bind(*args, **kwargs).arguments
            raise rejection(error, given, get_type_hints(kind, include_extras=True)) from None

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    __init__.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])  # type: ignore[attr-defined]
    return __init__


def rejection(error: ValidationError, given: Mapping[str, Any], hints: Mapping[str, Any]) -> Exception:
    """The first thing that pydantic rejected, as an error of ours.

    Args:
        given: name of a setting -> its value, in the order of the class's parameters.
        hints: name of a setting -> its type, with `Annotated` constraints.
    Returns:
        InvalidSetting; or, as it is, the error of a check of the class itself.
    """
    found = error.errors(include_url=False)
    first, cause = found[0], found[0].get("ctx", {}).get("error")
    if not first["loc"] and isinstance(cause, Exception):
        return cause
    place = first["loc"][0]  # of an argument by position, its number
    key = place if isinstance(place, str) else list(given)[place]
    if isinstance(cause, ValueError):
        return InvalidSetting(key, first["input"], str(cause))
    allowed = in_words(hints[key])
    if any(other["type"] == "finite_number" for other in found):
        finite = allowed.replace("a number", "a finite number").replace("of numbers", "of finite numbers")
        return InvalidSetting(key, given[key], f"must be {finite}, not NaN or infinity")
    return InvalidSetting(key, given[key], f"must be {allowed}")


# Plain values, as a file of settings holds them, against the types that they should have.


def checked_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The values as their types have them: of plain containers, a float from a whole number, a tuple from a list.

    Args:
        values: name -> a plain value, as JSON could hold it.
        hints: name -> type; those of other names are left alone.
    Raises:
        InvalidSetting: the first value that does not fit; says what its type allows.
    """
    declared = with_config(STRICT)(TypedDict("Values", {name: hints[name] for name in values}))  # type: ignore[misc]
    try:
        # Strict about JSON: from Python no list would pass for a tuple, and no text for a path.
        return TypeAdapter(declared).validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise rejection(error, values, hints) from None


def checked_arguments(kind: type, values: Mapping[str, Any], *, taker: str | None = None) -> dict[str, Any]:
    """What a class may be made with: every value checked by the type of its parameter, before the class is called.

    Args:
        kind: its parameters may have no types, as of a user's own class; then any value will do.
        taker: what takes them, for messages; None: the class, by its name.
    Raises:
        UnknownKey: a value for no parameter.
        InvalidSetting: a parameter without a value and without a default, or a value that does not fit.
    """
    accepted = parameters_of(kind)
    _require_known(accepted, values, taker or kind.__name__)
    for key in _missing(kind, accepted, values):
        where = f": set {taker}.{key}" if taker else ""
        raise InvalidSetting(key, None, f"is required by {kind.__name__}{where}")
    return checked_values(values, accepted)


def checked_against(declared: Mapping[str, Any], values: Mapping[str, Any], *, taker: str) -> dict[str, Any]:
    """The same where only names and types are known: whether one is missing is not looked at.

    Args:
        declared: name -> type hint, `Any` where it is not known.
    """
    _require_known(declared, values, taker)
    return checked_values(values, declared)


def _require_known(accepted: Mapping[str, Any], values: Mapping[str, Any], taker: str) -> None:
    for key, value in values.items():
        if key not in accepted:
            names = ", ".join(accepted) or "no keys"
            raise UnknownKey(key, value, f"unknown key; {did_you_mean(key, list(accepted))}{taker} takes {names}")


def parameters_of(kind: type) -> dict[str, Any]:
    """What a class takes: name -> type hint, `Any` where it has none."""
    holder = kind if dataclasses.is_dataclass(kind) else kind.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(holder, include_extras=True)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: hints.get(parameter.name, Any) for parameter in parameters if parameter.kind in named}


def _missing(kind: type, accepted: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Parameters without a default that no value is given for."""
    parameters = inspect.signature(kind).parameters
    return [name for name in accepted if parameters[name].default is inspect.Parameter.empty and name not in values]
