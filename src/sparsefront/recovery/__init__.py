"""Recovery after pruning: what is trained, for how long, and with which learning rates."""

from sparsefront.options import option_class


def __getattr__(name: str) -> type:
    """The class of an option, by its name: imported when it is first asked for."""
    return option_class(__name__, name)
