"""Finding the layers of a network that may be pruned."""

from torch import nn


def linear_and_conv_layers(net: nn.Module, *, inside: tuple[str, ...]) -> list[str]:
    """Names of all Linear and Conv2d modules at or below the modules named in `inside`, in the order of the network.

    The name of the network itself is "".
    A layer that two parents share is named once.
    """
    return [
        name
        for name, module in net.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
        and any(not root or f"{name}.".startswith(f"{root}.") for root in inside)
    ]
