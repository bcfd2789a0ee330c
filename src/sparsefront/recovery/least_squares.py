"""The kept weights that bring each layer's output closest to the unpruned one, by conjugate gradients."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.networks import layer_weight
from sparsefront.pruning.masked_weights import sharing_layers
from sparsefront.recovery.base import Round
from sparsefront.recovery.obs_update import LayerUpdate
from sparsefront.settings_class import Batches, settings_class

log = logging.getLogger(__name__)
CHECKED_EVERY = 10  # iterations; a check waits for the GPU
SINGULAR = (
    1e-6  # smallest eigenvalue of a Gram matrix, relative to its mean diagonal, below which it counts as singular
)


@settings_class()
class LeastSquares(LayerUpdate):
    """Settings of `recovery=least_squares`: layer by layer, in call order, a few batches of training data X give the weights
    W' on the mask that minimize |X (W - W')^T|^2 + damping * mean(diag X^T X) * |W - W'|^2, to `tolerance`. Masks, of any
    pattern, and biases do not change. `obs_update` approximates the same minimum in one sweep. With `mask_iterations` masks
    of single weights move first, to where the minimum is lower.

    Args:
        batches: calibration batches of training data, kept in memory throughout.
        damping: of the formula. Layers whose X^T X is singular (fewer rows than inputs, or inputs that depend on each other)
            take at least 0.01, which is logged: else the kept weights could be anything.
        iterations: maximum number for a layer.
        mask_iterations: maximum number of iterations that move a layer's mask (`move_mask`); 0 = the mask stays. The count of
            each layer (or window) stays, whatever the importance; a mask whose minimum is no lower is left.
        tolerance: stop when 10 iterations have lowered the layer's error by less than this fraction of it.
        sequential: compute a layer's inputs with the already updated layers before it; false: with the unpruned network,
            for all layers at once (each X^T X is [K, K] in fp32). Causal language models run block by block, with only
            one block on the device.
        batch_norm_batches: as in `recovery=none`.
    Source: the problem of Frantar and Alistarh, "SparseGPT", 2023, section 3.1; conjugate gradients on the mask as in Meng et
        al., "ALPS: Improved Optimization for Highly Sparse One-Shot Pruning for Large Language Models", 2024, section 3.2,
        and moving masks as in its section 3.1.
    """

    batches: Batches = 16
    damping: Annotated[float, Field(ge=0, le=1, description="a fraction of the mean diagonal of X^T X")] = 1e-4
    iterations: PositiveInt = 300
    mask_iterations: NonNegativeInt = 0
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    sequential: bool = True
    batch_norm_batches: Batches | None = 100

    name: ClassVar[str] = "least_squares"

    @property
    def moves_masks(self) -> str | None:
        return "mask_iterations" if self.mask_iterations else None

    @torch.no_grad()
    def _update(self, round: Round, layer: str, gram: Tensor) -> Tensor:
        """Solve for one layer in place; layers that share its weight keep the solution for the first of them."""
        weight = layer_weight(round.net.get_submodule(layer))
        mask = as_matrix(round.masks[layer]).to(weight.device)
        sharing = sharing_layers(round.net, round.masks)[layer]
        if bool(mask.all()) or layer != sharing[0] and bool((as_matrix(weight)[~mask] == 0).all()):
            return mask
        if not bool(gram.diagonal().isfinite().all()):  # it holds squares
            raise InvalidSetting("recovery", self.name, f"the inputs of {layer}, or their squares, are not finite")
        gram = gram.double()
        mean = gram.diagonal().mean()
        damping = self.damping
        if is_singular(gram):
            damping = max(damping, 0.01)
            log.info("least_squares: X^T X of %s is singular: damped by %g of its mean diagonal", layer, damping)
        gram.diagonal().add_(damping * torch.where(mean > 0, mean, torch.ones_like(mean)))
        solve = partial(
            solve_on_mask, as_matrix(weight), gram=gram, iterations=self.iterations, tolerance=self.tolerance
        )
        solution = solve(mask)
        if self.mask_iterations:
            inputs = round.spec.permutation(layer).inputs
            order = torch.arange(len(gram)) if inputs is None else inputs
            order = order.to(weight.device)
            select = partial(self._selection(round, layer, mask, order).keep, first=0)
            moved = move_mask(
                as_matrix(weight)[:, order], mask[:, order], gram[order][:, order], select, self.mask_iterations
            )[:, torch.argsort(order)]
            other = solve(distributed.broadcast(moved))
            if other.error_after < solution.error_after:
                mask, solution = moved, other
        log.debug(
            "least_squares: %s, error %.3g -> %.3g of the output in %d iterations",
            layer, solution.error_before, solution.error_after, solution.iterations,
        )  # fmt: skip
        weight.copy_(like_weight(distributed.broadcast(solution.weight.to(weight.dtype)), weight))
        return mask


def is_singular(gram: Tensor) -> bool:
    """Whether a symmetric, positive semidefinite matrix [K, K], float64, has an eigenvalue of nearly zero."""
    shifted = gram.clone()
    shifted.diagonal().sub_(SINGULAR * gram.diagonal().mean())
    return bool(torch.linalg.cholesky_ex(shifted).info)


def move_mask(
    weight: Tensor, mask: Tensor, gram: Tensor, select: Callable[[Tensor], Tensor], iterations: int
) -> Tensor:
    """A mask for whose w' the error (w - w')^T G (w - w'), summed over the rows of a weight, is likely to be lower.

    The alternating direction method of multipliers: a dense w' near a sparse one, then the sparse one nearest to it, with a
    penalty that grows while the mask changes. All inputs are scaled so that the diagonal of G is 1.

    Args:
        weight, mask, gram: as in `solve_on_mask`.
        select: scores [N, K] -> the mask of the highest.
        iterations: at most; it ends when the mask stays.
    Source: Meng et al., "ALPS", 2024, section 3.1; the penalty grows in every iteration, from a share of the mean of G's
        diagonal.
    """
    scale = gram.diagonal().rsqrt()
    target, gram = weight.double() / scale, gram * scale * scale[:, None]
    values, vectors = torch.linalg.eigh(gram)
    linear, sparse, dual, penalty = target @ gram, target * mask, torch.zeros_like(target), 0.1
    for _ in range(iterations):
        dense = (linear - dual + penalty * sparse) @ vectors / (values + penalty) @ vectors.T
        shifted = dense + dual / penalty
        moved = select(shifted.abs())
        sparse = shifted * moved
        dual += penalty * (dense - sparse)
        changed, mask = float((moved != mask).sum()) / max(1, int(moved.sum())), moved
        if changed == 0:
            break
        penalty *= 1.3 if changed > 0.1 else 1.2 if changed > 0.005 else 1.1
    return mask


@dataclass(frozen=True)
class Solution:
    """Args:
    weight: float64 [N, K], zero outside the mask.
    error_before, error_after: sum over the rows of (w - w')^T G (w - w'), relative to that of w'=0.
    iterations: taken.
    """

    weight: Tensor
    error_before: float
    error_after: float
    iterations: int


def solve_on_mask(weight: Tensor, mask: Tensor, gram: Tensor, *, iterations: int, tolerance: float) -> Solution:
    """For each row w of a weight, the w' on the row's mask that minimizes (w - w')^T G (w - w').

    All rows at once by conjugate gradients with the diagonal of G as preconditioner, from w masked. The error of the
    iterates follows from their steps, and never rises.

    Args:
        weight: [N, K], any float dtype.
        mask: bool [N, K], True = keep.
        gram: G, float64 [K, K], positive definite.
        iterations: at most.
        tolerance: see `LeastSquares`.
    """
    weight, support = weight.double(), mask.double()
    whole = float((weight @ gram * weight).sum())
    diagonal = gram.diagonal()
    solution = weight * support
    pruned = weight - solution
    residual = (pruned @ gram) * support
    errors = [float((pruned @ gram * pruned).sum())]
    direction = residual / diagonal
    slope = (residual * direction).sum(1, keepdim=True)
    gained, taken = torch.zeros((), dtype=torch.float64, device=weight.device), 0
    for taken in range(1, iterations + 1):
        image = (direction @ gram) * support
        curvature = (direction * image).sum(1, keepdim=True)
        step = torch.where(curvature > 0, slope / curvature, torch.zeros_like(slope))
        solution, residual = solution + step * direction, residual - step * image
        gained += (step * slope).sum()
        scaled = residual / diagonal
        next_slope = (residual * scaled).sum(1, keepdim=True)
        direction = scaled + torch.where(slope > 0, next_slope / slope, torch.zeros_like(slope)) * direction
        slope = next_slope
        if taken % CHECKED_EVERY == 0:
            errors.append(errors[0] - float(gained))
            if errors[-2] - errors[-1] <= tolerance * max(errors[-1], 0.0):
                break
    pruned = weight - solution
    after = float((pruned @ gram * pruned).sum())
    before, after = (error / whole if whole else math.nan for error in (errors[0], after))
    return Solution(solution, before, after, taken)
