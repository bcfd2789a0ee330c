"""Reading `distribution`: whether survivors may be anywhere, or n of every m along K."""

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.blocks import BlockPattern
from sparsefront.patterns.window import check_window_settings


class FreeOrBalanced(BlockPattern):
    """Base of the patterns on a fixed grid that take a `distribution`; a subclass declares both settings.

    Attributes:
        distribution: free, or balanced = n of every m blocks along K.
        m: window of the balanced distribution, in blocks; None chooses it as n_m does.
    """

    distribution: str
    m: int | None

    def check_distribution(self) -> None:
        """Raise InvalidSetting unless distribution is free or balanced and m is set only where it is balanced."""
        if self.distribution not in ("free", "balanced"):
            raise InvalidSetting("distribution", self.distribution, "free or balanced")
        if self.distribution == "free" and self.m is not None:
            raise InvalidSetting("m", self.m, "null with distribution=free: only a balanced distribution has windows")
        check_window_settings(None, self.m)

    @property
    def balanced(self) -> bool:
        return self.distribution == "balanced"

    @property
    def window_settings(self) -> dict[str, int | None]:
        return {"n": None, "m": self.m}
