"""Windows of a balanced distribution: exactly n kept of every m consecutive groups along K.

Shared by n_m (groups are weights), vector_wise (vectors) and block_wise (blocks).
"""

import math
from typing import Annotated, NamedTuple

from pydantic import Field

from sparsefront.errors import InvalidSetting

# The search for m starts at 4: 2 would be the smallest m for a density of a half, but 2:4 is the pattern that GPUs run.
SMALLEST_M, LARGEST_M = 4, 64
# How far n/m may lie from the density: 3:32 stands for a sparsity of 0.9.
TOLERANCE = 0.01

WindowSize = Annotated[
    Annotated[int, Field(ge=2, le=LARGEST_M)] | None, Field(description="null: chosen by sparsity and shape")
]
"""m, as a setting."""


class Window(NamedTuple):
    """n kept of every m."""

    n: int
    m: int

    @property
    def sparsity(self) -> float:
        """Fraction of zeros."""
        return 1 - self.n / self.m

    def expresses(self, sparsity: float) -> bool:
        """Whether n/m is close enough to the density. The last digits of a float must not decide it."""
        return abs(self.sparsity - sparsity) <= TOLERANCE + 1e-9

    def loosened(self, sparsity: float) -> "Window":
        """The window of the same m on the way to this one: the fewest kept that do not exceed `sparsity`."""
        return Window(min(self.m, max(self.n, math.ceil((1 - sparsity) * self.m - 1e-9))), self.m)


def nearest_window(m: int, sparsity: float) -> Window:
    """The n of this m nearest to the density, at least 1; of two equally near the larger."""
    return Window(min(m, max(1, math.floor((1 - sparsity) * m + 0.5))), m)


def find_window(length: int, sparsity: float, *, n: int | None, m: int | None) -> Window | None:
    """The window for `length` groups along K, or None where there is none.

    Args:
        length: groups along K; m has to divide it.
        sparsity: fraction of zeros, in [0, 1).
        n: the kept count; None derives it from sparsity and m.
        m: the window; None takes the smallest from 4 to 64 that divides `length` and has an n with n/m within 0.01 of
            the density (0.5 -> 2:4, 0.75 -> 1:4, 0.9 -> 3:32 where only powers of two divide).
    """
    for size in (m,) if m is not None else range(SMALLEST_M, LARGEST_M + 1):
        window = nearest_window(size, sparsity) if n is None else Window(n, size)
        if length % size == 0 and window.expresses(sparsity):
            return window
    return None


def check_window_sparsity(sparsity: float, *, n: int | None, m: int | None) -> None:
    """Raise InvalidSetting where no layer, whatever its shape, has a window for this sparsity."""
    if m is None:
        if not any(nearest_window(size, sparsity).expresses(sparsity) for size in range(SMALLEST_M, LARGEST_M + 1)):
            nearest = Window(1, LARGEST_M)
            raise InvalidSetting("m", m, f"no m up to {LARGEST_M} expresses sparsity {sparsity:g}; {_named(nearest)}")
    elif not nearest_window(m, sparsity).expresses(sparsity):
        around = (Window(kept, m) for kept in range(m, 0, -1))
        nearest = sorted(sorted(around, key=lambda window: abs(window.sparsity - sparsity))[:2], reverse=True)
        raise InvalidSetting("m", m, f"cannot express sparsity {sparsity:g}; {_named(*nearest)}")
    elif n is not None and not Window(n, m).expresses(sparsity):
        agreeing = nearest_window(m, sparsity)
        raise InvalidSetting(
            "n",
            n,
            f"{n}:{m} is sparsity {Window(n, m).sparsity:.4g}, not {sparsity:g}; n: {agreeing.n} (or null) agrees",
        )


def window_unsupported_reason(
    length: int, counted: str, sparsity: float, *, n: int | None, m: int | None
) -> str | None:
    """Why `length` groups along K have no window, in words; None where they have one. `counted`: length and group."""
    if find_window(length, sparsity, n=n, m=m) is not None:
        return None
    if m is None:
        return (
            f"no m from {SMALLEST_M} to {LARGEST_M} divides {counted} with n/m within {TOLERANCE} of density "
            f"{1 - sparsity:.4g}"
        )
    if length % m:
        return f"{counted} are not a multiple of m {m}"
    return f"windows of m {m} cannot express sparsity {sparsity:g}"


def _named(*windows: Window) -> str:
    """The nearest sparsities as a user would set them."""
    listed = " and ".join(f"{window.sparsity:.4g} ({window.n}:{window.m})" for window in windows)
    return f"the nearest {'sparsities are' if len(windows) > 1 else 'sparsity is'} {listed}"
