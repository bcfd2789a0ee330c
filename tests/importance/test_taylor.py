"""Taylor."""

from collections.abc import Iterator

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.importance.taylor import Taylor
from sparsefront.masks.weight_view import as_matrix


def test_sum_of_absolute_products_by_hand(hand_made):
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


def test_convolution_gradients_become_a_matrix(hand_made):
    weight, gradient = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    scores = Taylor(batches=1).scores({"conv": weight}, hand_made([{"conv": gradient}]))["conv"]
    torch.testing.assert_close(scores, as_matrix(weight * gradient).abs())


def test_no_more_batches_are_read_than_asked(hand_made):
    """A further batch would cost a forward and a backward pass."""

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(3):
            yield {"layer": torch.ones(1, 1)}
        pytest.fail("a fourth batch was computed")

    assert Taylor(batches=3).scores({"layer": torch.ones(1, 1)}, hand_made(batches()))["layer"].item() == 3


def test_what_is_missing_is_named(hand_made):
    with pytest.raises(ValueError, match="taylor.*gradients.*no calibration"):
        Taylor(batches=2).scores({"layer": torch.ones(1, 1)})
    with pytest.raises(ValueError, match="second"):
        one_of_two = hand_made([{"first": torch.ones(1, 1)}])
        Taylor(batches=2).scores({"first": torch.ones(1, 1), "second": torch.ones(1, 1)}, one_of_two)


@pytest.mark.parametrize("batches", [0, -1, 2.5, True])
def test_batches_are_counted(batches):
    with pytest.raises(InvalidSetting, match="batches"):
        Taylor(batches=batches)
