"""Wanda."""

import math

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.importance.wanda import Wanda
from sparsefront.patterns.uniform import Uniform


def test_against_plain_loops_over_all_rows_of_all_batches(hand_made):
    torch.manual_seed(0)
    weight, inputs = torch.randn(3, 5), [torch.randn(rows, 5) for rows in (4, 1, 7)]
    scores = Wanda(batches=3).scores({"layer": weight}, hand_made(inputs=[{"layer": x} for x in inputs]))["layer"]
    for i in range(3):
        for j in range(5):
            norm = math.sqrt(sum(float(row[j]) ** 2 for x in inputs for row in x))
            assert float(scores[i, j]) == pytest.approx(abs(float(weight[i, j])) * norm, rel=1e-5)


def test_bad_input_is_named(hand_made):
    with pytest.raises(ValueError, match="layer.*NaN"):
        Wanda(batches=1).scores(
            {"layer": torch.ones(1, 2)}, hand_made(inputs=[{"layer": torch.tensor([[1.0, float("nan")]])}])
        )
    with pytest.raises(ValueError, match="wanda.*no calibration"):
        Wanda().scores({"layer": torch.ones(1, 1)})
    with pytest.raises(InvalidSetting, match="batches=0"):
        Wanda(batches=0)


def test_the_pattern_that_the_docstring_names_compares_within_each_output(hand_made):
    torch.manual_seed(0)
    x, weight = torch.randn(30, 8), torch.randn(5, 8) * torch.tensor([[1.0], [10.0], [0.1], [5.0], [2.0]])
    scores = Wanda(batches=1).scores({"layer": weight}, hand_made(inputs=[{"layer": x}]))["layer"]
    mask = Uniform(granularity=1).mask(scores, 0.5)
    for row in range(5):
        best = sorted(range(8), key=lambda column, row=row: -float(scores[row, column]))[:4]
        assert mask[row].nonzero().flatten().tolist() == sorted(best)
