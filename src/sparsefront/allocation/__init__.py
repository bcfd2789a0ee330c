"""Allocation: how much to prune in each layer."""

from sparsefront.options import option_class


def __getattr__(name: str) -> type:
    """The class of an option, by its name: imported when it is first asked for."""
    return option_class(__name__, name)
