"""The exceptions for input that a user can fix and for SIGTERM, and what any exception says in one line."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from sparsefront.printable import printable


class InvalidSetting(ValueError):
    """A configuration value that cannot be used.

    Args:
        key: the configuration key as the user types it, or relative to its group (`validate` adds the group's name).
        value: what was given.
        allowed: in words, what is allowed instead, or why this value cannot work here.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return printable(f"{self.key}={self.value}: {self.allowed}", lines=True)

    def within(self, group: str) -> "InvalidSetting":
        """The same complaint with the key written from the root: `batch_size` in `measure` becomes `measure.batch_size`.

        A key that names its group already stays what it is.
        """
        if "." in self.key:
            return self
        return InvalidSetting(f"{group}.{self.key}", self.value, self.allowed)


class Obstacle(InvalidSetting):
    """Something outside the settings is in the way: a disk, a package, memory. `key` names it, and there is no value."""

    def __str__(self) -> str:
        return printable(f"{self.key}: {self.allowed}", lines=True)


class PassingObstacle(Obstacle):
    """One that says nothing about the settings of the run, such as a full disk: the same run may work later."""


class Edited(Obstacle):
    """A record, or what belongs to it, that is not what was stored; `key` names the part."""

    def __init__(self, part: str, how: str) -> None:
        super().__init__(part, None, how)


class Terminated(SystemExit):
    """SIGTERM ended a training. The exit status is 143, as shells tell it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "ended by SIGTERM"


@contextmanager
def keys_of(group: str) -> Iterator[None]:
    """Complaints from inside leave with their keys written from the root (see `InvalidSetting.within`)."""
    try:
        yield
    except InvalidSetting as error:
        complaint = error.within(group)
        if complaint is error:
            raise
        raise complaint from error


class UnknownKey(InvalidSetting):
    """A key that the chosen option of its group does not take."""

    def within(self, group: str) -> "InvalidSetting":
        rooted = super().within(group)
        return UnknownKey(rooted.key, rooted.value, rooted.allowed)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, since compilers add pages to it; its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def yaml_complaint(error: Exception) -> str:
    """What a YAML parser says of a file, in one line, with the place."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {problem}"


def failure_reason(error: BaseException) -> str:
    """The kind of exception and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
