"""Settings classes validated by pydantic, with error messages of one line."""

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

# Shared types of settings; `pydantic` itself has PositiveInt, NonNegativeFloat and the like.

Item = TypeVar("Item")

Fraction = Annotated[float, Field(ge=0, lt=1)]
"""In [0, 1), such as a sparsity, which must not be 1."""
LearningRate = Annotated[float, Field(gt=0, le=1000)]
"""A peak learning rate; beyond the bound no training converges, and weights soon overflow."""
Batches = Annotated[int, Field(ge=1, le=100_000)]
"""A number of batches to compute something from; more would be more than most trainings read."""
Dtype = Literal["fp32", "fp16", "bf16"]
"""Of weights and activations."""
Share = Annotated[float, Field(ge=0, le=1)]
"""In [0, 1]."""
ListOf = Annotated[list[Item], Strict(False)]
"""`ListOf[int]`: a list; from Python also a tuple."""
OneOrMore = Annotated[list[Item], Strict(False), Field(min_length=1)]
"""`OneOrMore[int]`: a non-empty `ListOf`."""


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return expression


Expression = Annotated[str, AfterValidator(_compiles)]
"""A regular expression, as text."""


# Type hints as text for messages: `a whole number of at least 1 or null`.

NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


def describe_type(hint: Any) -> str:
    """Describe the values that a type hint allows.

    Args:
        hint: of a field, with its `Annotated` constraints. A description in `Field(description=...)` is added in brackets.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in arguments)
    if origin is Literal:
        return _listed(map(str, arguments))
    if origin in (list, tuple):
        return f"a list of {_several(arguments[0])}"
    return NOUNS.get(hint, str(hint))


def _several(hint: Any) -> str:
    """Describe the items of a list, in plural."""
    if get_origin(hint) is Literal:
        return f"names out of {', '.join(map(str, get_args(hint)))}"
    words = describe_type(hint)
    for one, several in SEVERAL.items():
        words = words.replace(one, several, 1)
    return words


def _annotated(base: Any, notes: Iterable[Any]) -> str:
    fields = [note for note in notes if isinstance(note, FieldInfo)]
    constraints = [*(note for field in fields for note in field.metadata), *notes]
    words = describe_type(base)
    if any(isinstance(note, MinLen) for note in constraints):
        words = words.replace("a list of", "a list of one or more", 1)
    if bounds := _whole_bounds(constraints) if base is int else _bounds(constraints):
        null = " or null" if words.endswith(" or null") else ""
        words = f"{words.removesuffix(null)} {bounds}{null}"
    described = next((field.description for field in fields if field.description), None)
    return words if described is None else f"{words} ({described})"


def _bounds(constraints: Iterable[Any]) -> str:
    """Constraints as text: `of at least 0 and below 1`, `from 0 to 1`."""
    limits = dict(_limits(constraints))
    if limits.keys() == {"of at least", "at most"}:
        return f"from {limits['of at least']} to {limits['at most']}"
    return " and ".join(f"{side} {limit}" for side, limit in limits.items())


def _whole_bounds(constraints: Iterable[Any]) -> str:
    """`_bounds` for integers, with exclusive bounds made inclusive."""
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
    options = list(names)
    return " or ".join(options) if len(options) < 3 else f"one of {', '.join(options)}"


Class = TypeVar("Class", bound=type)

# No conversions except from int to float. Unknown arguments are errors.
STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_class(*, kw_only: bool = False) -> Callable[[Class], Class]:
    """Class decorator: a frozen dataclass whose values are validated against the types of its fields.

    Constraints of a single field belong to its type: `PositiveInt`, `Literal["l1", "l2"]`, `Annotated[float, Field(ge=0, lt=1)]`.
    Constraints between fields are checked in `__post_init__`, which runs after each field is valid.

    Raises, when an instance is made:
        InvalidSetting: the first invalid field, its value, and what its type allows.
        TypeError: a missing or unknown argument.
    """

    def decorate(kind: Class) -> Class:
        made = dataclass(frozen=True, kw_only=kw_only, config=STRICT)(kind)
        made.__init__ = _with_short_errors(made.__init__, inspect.signature(made), made)
        del made.__signature__  # a plain dataclass that derives from this one would inherit it
        return made

    return decorate


def _with_short_errors(
    checked_init: Callable[..., None], signature: inspect.Signature, kind: type
) -> Callable[..., None]:
    """Wrap `__init__` to raise InvalidSetting instead of pydantic's error."""

    @functools.wraps(checked_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            checked_init(self, *args, **kwargs)
        except ValidationError as error:
            arguments = signature.bind(*args, **kwargs).arguments
            raise rejection(error, arguments, get_type_hints(kind, include_extras=True)) from None

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    __init__.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])  # type: ignore[attr-defined]
    return __init__


def rejection(error: ValidationError, given: Mapping[str, Any], hints: Mapping[str, Any]) -> Exception:
    """Convert the first error of pydantic's ValidationError.

    Args:
        given: name of a setting -> its value, in the order of the class's parameters.
        hints: name of a setting -> its type, with `Annotated` constraints.
    Returns:
        InvalidSetting; or an error raised in `__post_init__`, unchanged.
    """
    errors = error.errors(include_url=False)
    first, cause = errors[0], errors[0].get("ctx", {}).get("error")
    if not first["loc"] and isinstance(cause, Exception):
        return cause
    place = first["loc"][0]  # a name, or the index of a positional argument
    key = place if isinstance(place, str) else list(given)[place]
    if isinstance(cause, ValueError):
        return InvalidSetting(key, first["input"], str(cause))
    allowed = describe_type(hints[key])
    if any(other["type"] == "finite_number" for other in errors):
        finite = allowed.replace("a number", "a finite number").replace("of numbers", "of finite numbers")
        return InvalidSetting(key, given[key], f"must be {finite}, not NaN or infinity")
    return InvalidSetting(key, given[key], f"must be {allowed}")


# Validation of plain values, such as from a configuration file.


def checked_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Validate plain values and convert them to their types: an int to a float, a list to a tuple.

    Args:
        values: name -> JSON-able value.
        hints: name -> type, for all names in `values`.
    Raises:
        InvalidSetting: the first invalid value, and what its type allows.
    """
    declared = with_config(STRICT)(TypedDict("Values", {name: hints[name] for name in values}))  # type: ignore[misc]
    try:
        # Via JSON: pydantic's strict mode for Python values would reject a list for a tuple, and text for a path.
        return TypeAdapter(declared).validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise rejection(error, values, hints) from None


def checked_arguments(kind: type, values: Mapping[str, Any], *, taker: str | None = None) -> dict[str, Any]:
    """Validate the arguments of a class by the types of its parameters, before the class is called.

    Args:
        kind: the class; parameters without types, as in a user-defined class, accept any value.
        taker: name of the class for messages; None: its own name.
    Raises:
        UnknownKey: a value without a parameter.
        InvalidSetting: a required parameter without a value, or an invalid value.
    """
    accepted = parameters_of(kind)
    _require_known(accepted, values, taker or kind.__name__)
    for key in _missing(kind, accepted, values):
        where = f": set {taker}.{key}" if taker else ""
        raise InvalidSetting(key, None, f"is required by {kind.__name__}{where}")
    return checked_values(values, accepted)


def checked_against(declared: Mapping[str, Any], values: Mapping[str, Any], *, taker: str) -> dict[str, Any]:
    """`checked_arguments` for known names and types only; missing arguments are not detected.

    Args:
        declared: name -> type hint, `Any` if unknown.
    """
    _require_known(declared, values, taker)
    return checked_values(values, declared)


def _require_known(accepted: Mapping[str, Any], values: Mapping[str, Any], taker: str) -> None:
    for key, value in values.items():
        if key not in accepted:
            names = ", ".join(accepted) or "no keys"
            raise UnknownKey(key, value, f"unknown key; {did_you_mean(key, list(accepted))}{taker} takes {names}")


def parameters_of(kind: type) -> dict[str, Any]:
    """The parameters of a class: name -> type hint, `Any` where it has none."""
    holder = kind if dataclasses.is_dataclass(kind) else kind.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(holder, include_extras=True)
    keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(kind).parameters.values()
    return {
        parameter.name: hints.get(parameter.name, Any) for parameter in parameters if parameter.kind in keyword_kinds
    }


def _missing(kind: type, accepted: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Required parameters without a value."""
    parameters = inspect.signature(kind).parameters
    return [name for name in accepted if parameters[name].default is inspect.Parameter.empty and name not in values]
