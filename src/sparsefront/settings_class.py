"""Settings classes validated by pydantic, with error messages of one line."""

import dataclasses
import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from sparsefront.errors import InvalidSetting, unknown_key

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


Class = TypeVar("Class", bound=type)

LATER = {"recovery_share": 0.0, "multiple_of": 1, "units": "width", "mask_iterations": 0}


def without_later(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings but those that came after earlier records and change nothing: records, digests and keys stay the same."""
    return {key: value for key, value in settings.items() if key not in LATER or value != LATER[key]}


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


def rejection(error: ValidationError, values: Mapping[str, Any], hints: Mapping[str, Any]) -> Exception:
    """Convert the first error of pydantic's ValidationError, in its words, to one of ours.

    Args:
        values: name of a setting -> its value, in the order of the class's parameters.
        hints: name of a setting -> its type; a description in `Field(description=...)` is added in brackets.
    Returns:
        InvalidSetting; or an error raised in `__post_init__`, unchanged.
    """
    errors = error.errors(include_url=False)
    first, cause = errors[0], errors[0].get("ctx", {}).get("error")
    if not first["loc"] and isinstance(cause, Exception):
        return cause
    place = first["loc"][0]  # a name, or the index of a positional argument
    key = place if isinstance(place, str) else list(values)[place]
    if isinstance(cause, ValueError):
        return InvalidSetting(key, first["input"], str(cause))
    of_key = [re.sub(r"^\w+ should", "must", other["msg"]) for other in errors if other["loc"][0] == place]
    of_key = [message.replace("valid array", "valid list") for message in of_key]
    message = " or ".join(dict.fromkeys(of_key)).replace(" or must be", " or")  # one for each type of a union
    notes = (note.description for note in get_args(hints[key])[1:] if isinstance(note, FieldInfo))
    description = next(filter(None, notes), None)
    return InvalidSetting(key, values[key], message if description is None else f"{message} ({description})")


def validate_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
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


def validate_arguments(kind: type, values: Mapping[str, Any], *, taker: str | None = None) -> dict[str, Any]:
    """Validate the arguments of a class by the types of its parameters, before the class is called.

    Args:
        kind: the class; parameters without types, as in a user-defined class, accept any value.
        taker: name of the class for messages; None: its own name.
    Raises:
        UnknownKey: a value without a parameter.
        InvalidSetting: a required parameter without a value, or an invalid value.
    """
    accepted = parameters_of(kind)
    require_known(accepted, values, taker or kind.__name__)
    for key in _missing(kind, accepted, values):
        where = f": set {taker}.{key}" if taker else ""
        raise InvalidSetting(key, None, f"is required by {kind.__name__}{where}")
    return validate_values(values, accepted)


def require_known(accepted: Iterable[str], values: Mapping[str, Any], taker: str) -> None:
    """Raise UnknownKey for the first value without a parameter."""
    for key, value in values.items():
        if key not in accepted:
            raise unknown_key(key, value, key, list(accepted), taker)


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
