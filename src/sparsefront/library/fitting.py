"""Whether weights are those of a network of this architecture."""

from collections.abc import Mapping

from torch import Tensor

from sparsefront.models.checkpoint import misfit


def misfit_of(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """In words, the first few differences between a state dict and that of the network; "" where there are none."""
    return misfit(
        missing=[key for key in own if key not in weights],
        unexpected=[key for key in weights if key not in own],
        reshaped=[
            f"{key} {list(value.shape)} for {list(own[key].shape)}"
            for key, value in weights.items()
            if key in own and value.shape != own[key].shape
        ],
    )
