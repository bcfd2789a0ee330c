"""The decorator of settings classes, and the one place that turns what pydantic rejects into a line for the user."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from sparsefront.declared.words import in_words
from sparsefront.errors import InvalidSetting

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
    """`__init__` with InvalidSetting in place of pydantic's error."""

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
