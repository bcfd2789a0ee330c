"""When the next kernel may start while one still runs, and which launches are timed in each of these ways."""

from collections.abc import Callable, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

DEPENDENT_LAUNCH = ("off", "early", "late")  # codes of cuda/streams.cuh


class DependentLaunch(Protocol):
    """An ordered dataclass of launch parameters."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def dependent_launch(self) -> str: ...

    def __lt__(self, other: Any, /) -> bool: ...


Launch = TypeVar("Launch", bound=DependentLaunch)


def best_first(launches: Sequence[Launch], predicted: Callable[[Launch], float], most: int) -> list[Launch]:
    """At most so many, best predicted first; of the first few also with the other ways of dependent launch."""
    best = sorted(launches, key=lambda launch: (predicted(launch), launch))[:most]
    others = [replace(launch, dependent_launch=way) for launch in best[:2] for way in ("early", "off")]
    return (best[: most - len(others)] + others)[:most] if most > len(others) else best[:most]
