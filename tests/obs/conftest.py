"""Layers to prune, in fp64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparsefront.obs.sweep import damp_hessian, input_hessian


@pytest.fixture
def layer() -> Callable:
    """layer(seed, n, k) -> weight [n, k], damped Hessian [k, k] of correlated inputs, mask [n, k] of about a half."""

    def make(seed: int, n: int = 5, k: int = 12) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        inputs = draw(4 * k, k) @ draw(k, k)
        return draw(n, k), damp_hessian(input_hessian(inputs), 0.01)[0], draw(n, k) > 0

    return make
