"""Reading `granularity`: the size of a group of weights that is kept or pruned together."""

import re

from sparsefront.errors import InvalidSetting


def group_length(granularity: object) -> int:
    """A vector length or tile width from its setting.

    Raises:
        InvalidSetting: anything but a whole number of at least 1.
    """
    # bool is an int to Python, and `granularity: true` is a typing slip rather than a 1.
    if isinstance(granularity, bool) or not isinstance(granularity, int) or granularity < 1:
        raise InvalidSetting("granularity", granularity, "a whole number of at least 1")
    return granularity


def block_shape(granularity: object) -> tuple[int, int]:
    """(outputs, inputs) of a block, from one side (64) or both ("4x64").

    Raises:
        InvalidSetting: anything but one or two whole numbers of at least 1.
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(granularity))
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(sides) < 1:
        raise InvalidSetting(
            "granularity", granularity, 'a block side of at least 1, or outputs x inputs such as "4x64"'
        )
    return sides
