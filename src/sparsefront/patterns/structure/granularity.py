"""Reading `granularity`: the size of a group of weights that is kept or pruned together."""

from typing import Annotated

from pydantic import Field, PositiveInt

BlockSize = (
    PositiveInt
    | Annotated[str, Field(pattern=r"^0*[1-9]\d*(x0*[1-9]\d*)?$", description='outputs x inputs, such as "4x64"')]
)
"""The side of a square block, or both sides."""


def block_shape(granularity: BlockSize) -> tuple[int, int]:
    """(outputs, inputs) of a block, from one side (64) or both ("4x64")."""
    outputs, _, inputs = str(granularity).partition("x")
    return int(outputs), int(inputs or outputs)
