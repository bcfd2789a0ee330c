"""The closed-form update of a whole network: what each layer sees, what it keeps, and what is rejected."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sparsefront.masks.weight_view import Permutation, as_matrix, like_weight
from sparsefront.obs.sweep import Given, damp_hessian, input_hessian, inverse_factor, sweep
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.calibration import as_rows
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.recovery.base import RecoverySetup, Round
from sparsefront.recovery.least_squares import LeastSquares, move_mask, solve_on_mask
from sparsefront.recovery.obs_update import ObsUpdate
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

LAYERS = ["conv", "q", "k", "head"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)  # not in the order of its use
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.q, self.k = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x):
        features = self.conv(x).relu().flatten(1)
        return self.head(self.q(features) * self.k(features).sigmoid())


def smooth_images(count: int, seed: int) -> torch.Tensor:
    """Neighboring pixels tell of each other, as in real images: else no weight could make up for another."""
    coarse = torch.randn(count, 2, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, scale_factor=2, mode="bilinear")


@pytest.fixture
def batches() -> list[dict[str, torch.Tensor]]:
    return [{"x": smooth_images(32, seed), "labels": torch.arange(32) % 3} for seed in range(6)]


def net_of(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def round_of(net, masks, batches, *, pattern=None, sparsity=0.5, masked=None, spec=None) -> Round:
    """Round 0 of one, of a network on the CPU."""
    return Round(
        setup=RecoverySetup(
            pruning=PruningSettings(pattern or ElementWise(), sparsity),
            recipe=Recipe(),
            trainer=TrainerSettings(accelerator="cpu"),
            architecture=lambda: net,
            prunable=lambda net: LAYERS,
            epoch_weights=False,
        ),
        index=0,
        sparsity=sparsity,
        net=net,
        masks=masks,
        masked=masked or MaskedWeights(net, masks),
        spec=spec or MaskSpec(),
        data=SimpleNamespace(train_dataloader=lambda: iter(batches)),
        make_masks=None,
        make_task=lambda optimization: ImageClassification(net, num_classes=3),
        initial_net=None,
        dense_net=None,
        epoch_weights={},
        folder=Path(),
        resume_dir=Path(),
        loggers=[],
    )


def magnitude_masks(net: Net, pattern=None, sparsity: float = 0.5) -> dict[str, torch.Tensor]:
    pattern = pattern or ElementWise()
    weights = {name: net.get_submodule(name).weight.detach() for name in LAYERS}
    return {name: like_weight(pattern.mask(as_matrix(w).abs(), sparsity), w) for name, w in weights.items()}


def swept(module: nn.Module, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    hessian, _ = damp_hessian(input_hessian(as_rows(module, inputs)), 0.01)
    weight = module.weight.detach()
    updated = sweep(as_matrix(weight), inverse_factor(hessian), Given(as_matrix(mask)))[0]
    return like_weight(updated, weight)


@torch.no_grad()
@pytest.mark.parametrize("sequential", [True, False])
def test_each_layer_against_one_by_one(batches, sequential):
    """Oracle: the layers by hand, in the order of their use, on all images at once."""
    net, dense = net_of(), net_of()
    masks = magnitude_masks(net)
    x = torch.cat([batch["x"] for batch in batches])
    expected = {"conv": swept(dense.conv, x, masks["conv"])}
    if sequential:
        dense.conv.weight.copy_(expected["conv"])
    features = dense.conv(x).relu().flatten(1)
    expected |= {name: swept(dense.get_submodule(name), features, masks[name]) for name in ("q", "k")}
    if sequential:
        dense.q.weight.copy_(expected["q"]), dense.k.weight.copy_(expected["k"])
    mixed = dense.q(features) * dense.k(features).sigmoid()
    expected["head"] = swept(dense.head, mixed, masks["head"])

    ObsUpdate(batches=6, sequential=sequential).recover(round_of(net, masks, batches))
    for name in LAYERS:
        torch.testing.assert_close(net.get_submodule(name).weight, expected[name], rtol=1e-3, atol=1e-4, msg=name)


def direct(weight: torch.Tensor, mask: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Oracle: each row by itself, on the columns that it keeps."""
    solved = torch.zeros_like(weight)
    for row, keep in enumerate(mask):
        kept = keep.nonzero().flatten()
        solved[row, kept] = torch.linalg.solve(gram[kept][:, kept], (weight[row] @ gram)[kept])
    return solved


@torch.no_grad()
@pytest.mark.parametrize("condition", [1.0, 1e2, 3e4])
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_least_squares_reaches_a_direct_solve(condition, sparsity):
    generator = torch.Generator().manual_seed(0)
    mix = torch.linalg.qr(torch.randn(96, 96, generator=generator, dtype=torch.float64)).Q
    x = torch.randn(600, 96, generator=generator, dtype=torch.float64)
    x = 0.1 + x * torch.logspace(0, -math.log10(condition) / 2, 96, dtype=torch.float64) @ mix
    gram, weight = x.T @ x, torch.randn(24, 96, generator=generator, dtype=torch.float64)
    mask = torch.rand(24, 96, generator=generator) >= sparsity
    mask[0], mask[1] = False, True
    damped = gram + 1e-4 * gram.diagonal().mean() * torch.eye(96)
    found = solve_on_mask(weight, mask, damped, iterations=300, tolerance=1e-3)
    best = (x @ (weight - direct(weight, mask, gram)).T).square().sum()
    assert (x @ (weight - found.weight).T).square().sum() <= 1.02 * best
    assert not found.weight[~mask].any() and found.error_after <= found.error_before


@torch.no_grad()
@pytest.mark.parametrize("pattern", [ElementWise(), NM(m=4)], ids=["single", "2:4"])
def test_moved_masks_have_lower_minima(pattern):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 64, generator=generator) @ torch.randn(64, 64, generator=generator)
    gram, weight = (x.T @ x).double(), torch.randn(24, 64, generator=generator)
    mask = pattern.mask(weight.abs() * gram.diagonal().sqrt(), 0.5)
    moved = move_mask(weight, mask, gram, lambda scores: pattern.mask(scores, 0.5), 300)
    before, after = (solve_on_mask(weight, one, gram, iterations=300, tolerance=1e-3) for one in (mask, moved))
    pattern.check(moved, 0.5)
    assert after.error_after < 0.8 * before.error_after


@torch.no_grad()
@pytest.mark.parametrize("sequential", [True, False])
def test_least_squares_of_each_layer(batches, sequential, caplog):
    net, dense, swept_net = net_of(), net_of(), net_of()
    masks = magnitude_masks(net)
    with caplog.at_level("INFO"):
        LeastSquares(batches=6, sequential=sequential).recover(round_of(net, masks, batches))
    ObsUpdate(batches=6, sequential=sequential).recover(round_of(swept_net, masks, batches))
    x = torch.cat([batch["x"] for batch in batches])
    features = (dense if not sequential else net).conv(x).relu().flatten(1)
    for name, inputs in {"conv": x, "q": features, "k": features}.items():
        rows, weight = as_rows(dense.get_submodule(name), inputs).double(), as_matrix(dense.get_submodule(name).weight)
        lost = [
            float((rows @ (weight - as_matrix(other.get_submodule(name).weight)).double().T).square().sum())
            for other in (net, swept_net)
        ]
        assert sequential and name != "conv" or lost[0] < lost[1], "closer than one sweep"
        assert not net.get_submodule(name).weight[~masks[name]].any()
    assert not caplog.text
    with caplog.at_level("INFO"):  # 32 rows of 64 features
        LeastSquares(batches=1, sequential=sequential).recover(round_of(net := net_of(), masks, batches))
    assert "X^T X of q is singular: damped by 0.01 of its mean diagonal" in caplog.text
    assert (net.q.weight - dense.q.weight).norm() < 2 * dense.q.weight.norm()


@pytest.mark.parametrize(
    ("pattern", "permuted"),
    [(ElementWise(), False), (NM(m=2), False), (NM(m=2), True)],
    ids=["single", "1:2", "permuted"],
)
@pytest.mark.parametrize(
    "recovery", [ObsUpdate(batches=6, reselect=True, block=3), LeastSquares(batches=6, mask_iterations=50)], ids=type
)
def test_reselected_masks_stay_within_earlier_ones(batches, pattern, permuted, recovery):
    orders = {"q": Permutation(inputs=torch.randperm(64, generator=torch.Generator().manual_seed(5)))}
    spec = MaskSpec(orders if permuted else {})
    net = net_of()
    first = {name: torch.ones_like(net.get_submodule(name).weight, dtype=torch.bool) for name in LAYERS}
    if pattern.name == "element_wise":  # an earlier round; windows of two leave no round between all and one
        first = magnitude_masks(net, sparsity=0.25)
    masked = MaskedWeights(net, LAYERS)
    masked.set(first)
    masks = {}
    for name, mask in first.items():
        permutation = spec.permutation(name)
        scores = torch.rand(as_matrix(mask).shape).masked_fill(~as_matrix(mask), -1)
        masks[name] = permutation.invert(pattern.mask(permutation.apply(scores), 0.5))
    round = round_of(net, masks, batches, pattern=pattern, masked=masked, spec=spec)
    recovery.recover(round)
    round.masked.check()
    for name, mask in round.masked.masks().items():
        pattern.check(as_matrix(mask), 0.5, spec.permutation(name))
        assert int(mask.sum()) == int(masks[name].sum()) and not (mask & ~first[name]).any()
    assert any(not torch.equal(as_matrix(mask), masks[name]) for name, mask in round.masked.masks().items())
