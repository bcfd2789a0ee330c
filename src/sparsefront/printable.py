"""Text that others wrote, as a terminal may show it: names of runs, messages, cells of tables."""

import re

MOST_DRAWN = 300  # characters of a line in a plot
# What moves the cursor, rings, colors, or turns the order of letters round; and halves of characters, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: object, *, lines: bool = False) -> str:
    r"""Text without control characters: each stands as its escape, such as `\x1b`, `\r`, `\u202e`.

    Args:
        lines: line ends stay; else they are control characters, too.
    """
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub(_escaped, str(text))


def plot_text(text: object) -> str:
    """Text that matplotlib draws as it is: no control characters, no formula between dollar signs, no endless line."""
    lines = (line if len(line) <= MOST_DRAWN else f"{line[:MOST_DRAWN]}..." for line in str(text).split("\n"))
    return printable("\n".join(lines), lines=True).replace("$", r"\$")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
