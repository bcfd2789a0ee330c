"""The original code of a rewritten block, with fused products as its Linears: for calls that no graph supports."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.networks import layer_weight

Layers = tuple[str, ...]


def original_code(
    bare: nn.Module,
    products: Mapping[Layers, FusedProduct],
    kept: Mapping[str, Tensor],
    norm_biases: Mapping[Layers, Tensor | None],
) -> nn.Module:
    """A runnable copy of the block's original module; tensors and products are shared with the caller.

    Args:
        bare: from `capture.skeleton`; unchanged.
        products, kept, norm_biases: as in `FusedBlock`.
    """
    tensors = {**dict(bare.named_parameters()), **dict(bare.named_buffers())}
    memo: dict[int, Any] = {id(tensors[name]): tensor for name, tensor in kept.items()}
    code = copy.deepcopy(bare, memo)
    for layers, product in products.items():
        sizes = [len(layer_weight(bare.get_submodule(name))) for name in layers]
        shared = _SharedProduct(product, sizes, norm_biases.get(layers))
        for place, name in enumerate(layers):
            code.set_submodule(name, _Part(shared, place))
    return code.eval()


class _SharedProduct(nn.Module):
    """One product for several Linears that read the same x: the first call multiplies, the others take slices.

    Args:
        sizes: outputs of each Linear.
        bias: the bias if the norm after the product adds it; else None.
    """

    def __init__(self, product: FusedProduct, sizes: list[int], bias: Tensor | None) -> None:
        super().__init__()
        self.product, self.sizes, self.bias = product, sizes, bias
        self._x: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, place: int) -> Tensor:
        """Output of the Linear at this place for x [..., K], in any call order."""
        if place == 0 or x is not self._x:
            y = self.product.without_epilogue(x)
            y = y if self.bias is None else y + self.bias.to(y.dtype)
            self._x, self._outputs = x, y.split(self.sizes, dim=-1) if len(self.sizes) > 1 else (y,)
        output = self._outputs[place]
        if place == len(self.sizes) - 1:  # nothing outlives the forward pass
            self._x, self._outputs = None, ()
        return output


class _Part(nn.Module):
    """Replaces one Linear of a product in the block."""

    def __init__(self, shared: _SharedProduct, place: int) -> None:
        super().__init__()
        self.shared, self.place = shared, place
        self.out_features, self.in_features = shared.sizes[place], shared.product.in_features

    @property
    def weight(self) -> Tensor:
        """[N, K] filled with NaN, for code that reads its dtype or device."""
        product = self.shared.product
        like = torch.full((1, 1), math.nan, dtype=product.format.dtype, device=product.device)
        return like.expand(self.out_features, self.in_features)

    @property
    def bias(self) -> Tensor | None:
        return self.shared.product.bias

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named as in nn.Linear."""
        return self.shared.part(input, self.place)
