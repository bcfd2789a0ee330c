"""What each importance computes, against plain loops and figures by hand; messages of bad input."""

import math
from collections.abc import Iterator

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.importance.fisher import Fisher
from sparsefront.importance.magnitude import Magnitude
from sparsefront.importance.obs import OptimalBrainSurgeon
from sparsefront.importance.random import Random
from sparsefront.importance.taylor import Taylor
from sparsefront.importance.wanda import Wanda
from sparsefront.masks.weight_view import as_matrix


def test_fisher_against_loops(hand_made):
    torch.manual_seed(1)
    weight, gradients = torch.randn(3, 4), [torch.randn(3, 4) for _ in range(5)]
    scores = Fisher(batches=5).scores({"layer": weight}, hand_made([{"layer": g} for g in gradients]))["layer"]
    for i in range(3):
        for j in range(4):
            mean_square = sum(float(g[i, j]) ** 2 for g in gradients) / 5
            assert float(scores[i, j]) == pytest.approx(float(weight[i, j]) ** 2 * mean_square, rel=1e-5)


def test_magnitude_norms():
    weights = {"linear": torch.tensor([[1.0, -2.0], [0.0, 3.0]]), "conv": -torch.ones(2, 1, 1, 3)}
    l1, l2 = (Magnitude(norm=norm).scores(weights) for norm in ("l1", "l2"))
    assert l1["linear"].tolist() == [[1, 2], [0, 3]] and l2["linear"].tolist() == [[1, 4], [0, 9]]
    assert l1["conv"].shape == (2, 3)


def test_small_half_weights_do_not_vanish():
    weight = torch.full((2, 2), 1e-4, dtype=torch.float16, requires_grad=True)
    scores = Magnitude(norm="l2").scores({"layer": weight})["layer"]
    assert scores.dtype == torch.float32 and (scores > 0).all() and not scores.requires_grad


def test_obs_is_twice_the_loss(hand_made):
    """Oracle: per weight, least squares of the layer's output on the other inputs."""
    torch.manual_seed(0)
    weight, x = torch.randn(3, 6), torch.randn(40, 6) @ torch.randn(6, 6)
    importance = OptimalBrainSurgeon(batches=1, damping=1e-7)
    scores = importance.scores({"layer": weight}, hand_made(inputs=[{"layer": x}]))["layer"]
    x, weight = x.double(), weight.double()
    for i in range(3):
        for j in range(6):
            others = [k for k in range(6) if k != j]
            best = torch.linalg.lstsq(x[:, others], x @ weight[i]).solution
            lost = (x @ weight[i] - x[:, others] @ best).square().sum()
            assert float(scores[i, j]) == pytest.approx(2 * float(lost), rel=1e-3)


def test_random_draws_follow_the_seed():
    weights = {"a": torch.ones(8, 16), "b": torch.ones(8, 16)}
    torch.manual_seed(1)
    first = Random(seed=3).scores(weights)
    torch.manual_seed(2)
    again = Random(seed=3).scores(dict(reversed(weights.items())))
    assert all(torch.equal(first[name], again[name]) for name in weights)
    assert not torch.equal(first["a"], first["b"])
    assert not torch.equal(first["a"], Random(seed=4).scores(weights)["a"])


def test_taylor_sums_absolute_products(hand_made):
    weights = {"layer": torch.tensor([[1.0, -2.0], [3.0, 0.0]])}
    gradients = [{"layer": torch.tensor([[2.0, 1.0], [-1.0, 9.0]])}, {"layer": torch.tensor([[-2.0, 0.5], [1.0, 9.0]])}]
    # The signs of the first row's first weight cancel over the batches; its importance must not.
    assert Taylor(batches=2).scores(weights, hand_made(gradients))["layer"].tolist() == [[4, 3], [6, 0]]


def test_scores_of_training_replace_calibration(hand_made):
    weights, sums = {"layer": torch.ones(1, 2)}, {"layer": torch.tensor([[3.0, 4.0]])}
    importance, gradients = Taylor(batches=1, from_training=True), [{"layer": torch.tensor([[1.0, 2.0]])}]
    scores = importance.scores(weights, hand_made(accumulated=sums))["layer"]
    assert torch.equal(scores, sums["layer"]) and scores is not sums["layer"]
    untrained = {"layer": torch.zeros(1, 2)}
    assert importance.scores(weights, hand_made(gradients, accumulated=untrained))["layer"].tolist() == [[1, 2]]
    assert Taylor(batches=1).scores(weights, hand_made(gradients, accumulated=sums))["layer"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedule=one_shot"], r"importance\.from_training=True: schedule=one_shot makes all masks before"),
        (["schedule=iterative", "recovery=obs_update"], "importance=taylor: .*obs_update trains nothing"),
    ],
)
def test_scores_of_training_need_one(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("importance=taylor", "importance.from_training=true", *overrides))


def test_batches_are_read_as_asked(hand_made):
    """A further batch would cost a forward and a backward pass."""

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(3):
            yield {"layer": torch.ones(1, 1)}
        pytest.fail("a fourth batch was computed")

    assert Taylor(batches=3).scores({"layer": torch.ones(1, 1)}, hand_made(batches()))["layer"].item() == 3


def test_wanda_against_loops(hand_made):
    torch.manual_seed(0)
    weight, inputs = torch.randn(3, 5), [torch.randn(rows, 5) for rows in (4, 1, 7)]
    scores = Wanda(batches=3).scores({"layer": weight}, hand_made(inputs=[{"layer": x} for x in inputs]))["layer"]
    for i in range(3):
        for j in range(5):
            norm = math.sqrt(sum(float(row[j]) ** 2 for x in inputs for row in x))
            assert float(scores[i, j]) == pytest.approx(abs(float(weight[i, j])) * norm, rel=1e-5)


@pytest.mark.parametrize(("kind", "power"), [(Fisher, 2), (Taylor, 1)])
def test_convolution_gradients_become_a_matrix(hand_made, kind, power):
    weight, gradient = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    before = weight.clone(), gradient.clone()
    scores = kind(batches=1).scores({"conv": weight}, hand_made([{"conv": gradient}]))["conv"]
    torch.testing.assert_close(scores, as_matrix(weight * gradient).abs() ** power)
    assert torch.equal(weight, before[0]) and torch.equal(gradient, before[1])


def of(importance: object, weight: list, calibration: object = None) -> object:
    return importance.scores({"layer": torch.tensor([weight])}, *([] if calibration is None else [calibration]))


BAD = {
    "norm=linf": lambda made: Magnitude(norm="linf"),
    "layer.*1 NaN": lambda made: of(Magnitude(norm="l1"), [1.0, math.nan]),
    "layer.*1 infinite": lambda made: of(Magnitude(norm="l1"), [1.0, -math.inf]),
    "layer.*1 infinite of 2": lambda made: of(
        Fisher(batches=1), [1.0, 1.0], made([{"layer": torch.tensor([[1e30, 1.0]])}])
    ),
    "layer: its inputs": lambda made: of(
        OptimalBrainSurgeon(batches=1), [1.0, 1.0], made(inputs=[{"layer": torch.tensor([[1.0, math.nan]])}])
    ),
    "layer.*NaN": lambda made: of(
        Wanda(batches=1), [1.0, 1.0], made(inputs=[{"layer": torch.tensor([[1.0, math.nan]])}])
    ),
    "layer": lambda made: of(Taylor(batches=2), [1.0], made([{"first": torch.ones(1, 1)}])),
    "fisher.*no calibration": lambda made: of(Fisher(), [1.0]),
    "taylor.*gradients.*no calibration": lambda made: of(Taylor(batches=2), [1.0]),
    "obs.*no calibration": lambda made: of(OptimalBrainSurgeon(), [1.0]),
    "wanda.*no calibration": lambda made: of(Wanda(), [1.0]),
    "damping=0": lambda made: OptimalBrainSurgeon(damping=0.0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(hand_made, message):
    with pytest.raises(ValueError, match=message):
        BAD[message](hand_made)


@pytest.mark.parametrize("batches", [0, -1, 2.5, True])
@pytest.mark.parametrize("kind", [Fisher, OptimalBrainSurgeon, Taylor, Wanda])
def test_batches_are_counted(kind, batches):
    with pytest.raises(InvalidSetting, match=f"batches={batches}"):
        kind(batches=batches)
