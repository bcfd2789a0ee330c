"""Types of settings that several classes share; `pydantic` itself has PositiveInt, NonNegativeFloat and the like."""

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, Strict

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
