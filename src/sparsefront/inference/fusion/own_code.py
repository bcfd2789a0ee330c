"""The code of a rewritten block as its author wrote it, with products as its Linears: for calls that no graph can serve."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.networks import layer_weight

Layers = tuple[str, ...]


def own_code(
    bare: nn.Module,
    products: Mapping[Layers, FusedProduct],
    kept: Mapping[str, Tensor],
    norm_biases: Mapping[Layers, Tensor | None],
) -> nn.Module:
    """The block without weights as a module that runs; tensors and products are shared with the caller.

    Args:
        bare: from `capture.skeleton`; stays as it is.
        products, kept, norm_biases: as of `FusedBlock`.
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
    """One product for several Linears that read the same x: the first one called multiplies, the others take slices.

    Args:
        sizes: outputs of each Linear.
        bias: that the product leaves to a norm behind it, or None.
    """

    def __init__(self, product: FusedProduct, sizes: list[int], bias: Tensor | None) -> None:
        super().__init__()
        self.product, self.sizes, self.bias = product, sizes, bias
        self._x: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, place: int) -> Tensor:
        """What the Linear at this place gives for x [..., K], whatever the order of the calls."""
        if place == 0 or x is not self._x:
            y = self.product.without_epilogue(x)
            y = y if self.bias is None else y + self.bias.to(y.dtype)
            self._x, self._outputs = x, y.split(self.sizes, dim=-1) if len(self.sizes) > 1 else (y,)
        output = self._outputs[place]
        if place == len(self.sizes) - 1:  # nothing outlives the forward pass
            self._x, self._outputs = None, ()
        return output


class _Part(nn.Module):
    """One Linear of a product, at its place in the block."""

    def __init__(self, shared: _SharedProduct, place: int) -> None:
        super().__init__()
        self.shared, self.place = shared, place
        self.out_features, self.in_features = shared.sizes[place], shared.product.in_features

    @property
    def weight(self) -> Tensor:
        """[N, K] for code that asks for its type and device; its values are NaN."""
        product = self.shared.product
        like = torch.full((1, 1), math.nan, dtype=product.format.dtype, device=product.device)
        return like.expand(self.out_features, self.in_features)

    @property
    def bias(self) -> Tensor | None:
        return self.shared.product.bias

    def forward(self, input: Tensor) -> Tensor:
        """`input` is called as nn.Linear calls it."""
        return self.shared.part(input, self.place)
