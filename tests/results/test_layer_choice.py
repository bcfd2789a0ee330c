"""Which layers are drawn."""

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.results.mask_pictures import choose_layers
from sparsefront.results.run_report import Report

PARTS = {
    "query": (8, 8),
    "key": (8, 8),
    "value": (8, 8),
    "output": (8, 8),
    "fc1": (16, 8),
    "fc2": (8, 16),
    "more": (4, 4),
}
SHAPES = {f"encoder.{number}.{part}": shape for number in range(12) for part, shape in PARTS.items()}


def test_expressions_choose_in_the_order_of_the_network():
    assert choose_layers(SHAPES, [r"\.fc2$", r"^encoder\.1\.query"]) == [
        *("encoder.0.fc2", "encoder.1.query"),
        *(f"encoder.{number}.fc2" for number in range(1, 12)),
    ]


def test_an_expression_that_finds_nothing_is_rejected_with_the_layers():
    with pytest.raises(InvalidSetting, match=r"mask_layers=fc3: finds no layer .*encoder\.0\.query.* and 72 more"):
        choose_layers(SHAPES, ["fc2", "fc3"])


@pytest.mark.parametrize(
    ("expressions", "message"),
    [([], "a list of one or more texts? or null .null: a few"), (["("], "not a regular expression")],
)
def test_settings_reject_what_no_layer_could_meet(expressions, message):
    with pytest.raises(InvalidSetting, match=f"mask_layers=.*{message}"):
        Report(mask_layers=expressions)


def test_it_is_rejected_before_training(composed):
    from sparsefront.config.validate import validate

    with pytest.raises(InvalidSetting, match=r"report\.mask_layers=quary: finds no layer that is pruned; there are "):
        validate(composed("report.mask_layers=[quary]", "trainer=cpu", "measure.device=cpu"))
