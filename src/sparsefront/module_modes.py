"""Training and eval mode of a network for a while, of each of its modules: a frozen norm may be in eval mode among others."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def keep_modes(net: nn.Module) -> Iterator[None]:
    """Every module is then in the mode in which it was."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training  # `train` would set those below it too


@contextmanager
def in_eval_mode(net: nn.Module) -> Iterator[None]:
    """The whole network is in eval mode until then."""
    with keep_modes(net):
        net.eval()
        yield
