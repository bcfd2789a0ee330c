"""Reading `distribution`: whether survivors may be anywhere, or n of every m along K."""

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.window import check_window_settings


def check_distribution(distribution: str, m: int | None) -> None:
    """Raise InvalidSetting unless distribution is free or balanced and m is set only where it is balanced."""
    if distribution not in ("free", "balanced"):
        raise InvalidSetting("distribution", distribution, "free or balanced")
    if distribution == "free" and m is not None:
        raise InvalidSetting("m", m, "null with distribution=free: only a balanced distribution has windows")
    check_window_settings(None, m)
