"""Exceptions for input that a user can fix and for SIGTERM, and helpers for messages and untrusted text."""

import difflib
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_DRAWN = 300  # characters of a line in a plot
# Control characters, bidirectional overrides, and surrogates, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: object, *, lines: bool = False) -> str:
    r"""Replace control characters by their escapes, such as `\x1b`, `\r`, `\u202e`.

    Args:
        lines: keep newlines; else they are escaped, too.
    """
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub(_escape, str(text))


def plot_text(text: object) -> str:
    """Text for matplotlib: without control characters, formulas between dollar signs, and overlong lines."""
    lines = (line if len(line) <= MOST_DRAWN else f"{line[:MOST_DRAWN]}..." for line in str(text).split("\n"))
    return printable("\n".join(lines), lines=True).replace("$", r"\$")


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class InvalidSetting(ValueError):
    """A configuration value that cannot be used.

    Args:
        key: the configuration key as the user types it, or relative to its group (`validate` adds the group's name).
        value: the given value.
        allowed: text: what is allowed instead, or why this value cannot work here.

    `passing`: whether the cause is temporary, so that the same settings may work later.
    """

    passing = False

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return printable(f"{self.key}={self.value}: {self.allowed}", lines=True)

    def within(self, group: str) -> "InvalidSetting":
        """The same error with the full key: `batch_size` in `measure` becomes `measure.batch_size`.

        A key that includes a group already, or is the group itself, is unchanged.
        """
        if "." in self.key or self.key == group:
            return self
        complaint = InvalidSetting(f"{group}.{self.key}", self.value, self.allowed)
        complaint.passing = self.passing
        return complaint


class Obstacle(InvalidSetting):
    """A problem outside the settings, such as a disk, a package or memory. `key` names it, and there is no value."""

    def __str__(self) -> str:
        return printable(f"{self.key}: {self.allowed}", lines=True)


class PassingObstacle(Obstacle):
    """A temporary obstacle, such as a full disk: the same run may work later."""

    passing = True


class NoRoom(InvalidSetting):
    """A disk lacks space, maybe temporarily. `key` is the setting that names the disk."""

    passing = True


class Edited(Obstacle):
    """A record, or a file of it, was modified after it was stored; `key` names the part."""

    def __init__(self, part: str, how: str) -> None:
        super().__init__(part, None, how)


class Terminated(SystemExit):
    """SIGTERM ended a training. The exit status is 143, as in shells."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "ended by SIGTERM"


@contextmanager
def keys_of(group: str) -> Iterator[None]:
    """Add the group to the keys of errors from inside (see `InvalidSetting.within`)."""
    try:
        yield
    except InvalidSetting as error:
        complaint = error.within(group)
        if complaint is error:
            raise
        raise complaint from error


class UnknownKey(InvalidSetting):
    """A key that the chosen option of its group does not have."""

    def within(self, group: str) -> "InvalidSetting":
        rooted = super().within(group)
        return UnknownKey(rooted.key, rooted.value, rooted.allowed)


def unknown_key(key: str, value: object, name: str, names: Sequence[str], taker: str) -> UnknownKey:
    """The error for a key that its taker does not have, with those that it has. `name`: the part of `key` that is unknown."""
    known = ", ".join(names) or "no keys"
    return UnknownKey(key, value, f"unknown key; {did_you_mean(name, names)}{taker} takes {known}")


def closest(name: str, names: Sequence[str]) -> str:
    """The five names most similar to an unknown one, for a message; those that contain it first."""
    holding = [other for other in names if name and name in other]
    alike = difflib.get_close_matches(name, names, n=5, cutoff=0.0)
    return ", ".join(list(dict.fromkeys(holding + alike))[:5])


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """A prefix such as `did you mean tile_wise? ` for a list of all names; empty where none is similar."""
    plain = {other.lower(): other for other in names}
    alike = difflib.get_close_matches(name.lower(), plain, n=1)
    holding = [other for other in plain if len(name) > 2 and name.lower() in other]
    suggestions = [plain[other] for other in dict.fromkeys([*alike, *holding])][:2]
    return f"did you mean {' or '.join(suggestions)}? " if suggestions else ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, since compilers add pages to it; its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def yaml_complaint(error: Exception) -> str:
    """A YAML parser's error in one line, with its position."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {problem}"


def failure_reason(error: BaseException) -> str:
    """The exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
