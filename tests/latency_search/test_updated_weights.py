"""What is kept of a layer makes up for what is pruned, by the inputs that it has in the dense network."""

import pytest
import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.errors import output_error
from sparsefront.latency_search.updated_weights import UpdatedWeights
from sparsefront.masks.weight_view import as_matrix
from sparsefront.obs.hessian import input_hessian
from sparsefront.patterns.element_wise import ElementWise

N, K, ROWS = 64, 96, 400


def made(layer: nn.Module, inputs: torch.Tensor) -> tuple[UpdatedWeights, CandidateMasks, list[int]]:
    """Weights of one layer, their masks, and a list that grows each time that Hessians are asked for."""
    net, asked = nn.ModuleDict({"layer": layer}), []
    masks = CandidateMasks({"layer": torch.rand(as_matrix(layer.weight.detach()).shape)}, (ElementWise(),))

    def hessians() -> dict[str, torch.Tensor]:
        asked.append(1)
        return {"layer": input_hessian(inputs)}

    return UpdatedWeights(net, masks, hessians), masks, asked


def inputs() -> torch.Tensor:
    """Few directions carry them, so that inputs can stand in for each other."""
    return torch.randn(ROWS, 6) @ torch.randn(6, K) + 0.1 * torch.randn(ROWS, K)


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.75])
def test_the_output_comes_closer_to_the_dense_one(sparsity):
    x, layer = inputs(), nn.Linear(K, N)
    updated, masks, _ = made(layer, x)
    found, mask = updated.weight("layer", 0, sparsity), masks.mask("layer", 0, sparsity)
    assert not found[~mask].any() and found[mask].all()
    dense, change = layer.weight.detach(), found - layer.weight.detach()
    error = float((x @ change.t()).square().sum() / (x @ dense.t()).square().sum())
    assert error < 0.9 * output_error(dense, mask, input_hessian(x))


def test_each_is_made_once():
    updated, _, asked = made(nn.Linear(K, N), inputs())
    first = updated.weight("layer", 0, 0.5)
    updated.weight("layer", 0, 0.75)
    assert updated.weight("layer", 0, 0.5) is first and len(asked) == 1


def test_a_convolution_by_the_pixels_that_it_sees():
    layer = nn.Conv2d(2, 4, 3)
    updated, masks, _ = made(layer, torch.randn(ROWS, 18))
    found = updated.weight("layer", 0, 0.5)
    assert found.shape == (4, 18) and not found[~masks.mask("layer", 0, 0.5)].any()


def test_inputs_that_are_all_alike():
    """One direction carries them all, so that nothing but the damping makes their Hessian one that can be inverted."""
    updated, masks, _ = made(nn.Linear(K, N), torch.full((ROWS, K), 1e4))
    found = updated.weight("layer", 0, 0.5)
    assert found.isfinite().all() and not found[~masks.mask("layer", 0, 0.5)].any()


def test_inputs_that_are_not_finite_are_named():
    updated, _, _ = made(nn.Linear(K, N), torch.full((ROWS, K), float("inf")))
    with pytest.raises(InvalidSetting, match="update_weights=True: cannot be done: layer: its inputs"):
        updated.weight("layer", 0, 0.5)
