"""Predictions beside measurements."""

import pytest
from PIL import Image

from experiments.operators.plots import predictions, write_predictions_png


def test_panels_are_what_constants_are_of(measured):
    rows = [
        measured(predicted_us=45.0),
        measured(predicted_us=55.0, kernel="gathered_sm90", layout="row_major"),
        measured(predicted_us=40.0, kernel="cublas"),
        measured(predicted_us=40.0, kernel="cublas", dtype="fp32"),
        measured(kernel="triton_bsr"),
    ]
    found = predictions(rows)
    assert {panel: len(shown) for panel, shown in found.items()} == {
        ("cublas", "fp16"): 1,
        ("cublas", "fp32"): 1,
        ("gathered_sm90", "fp16"): 2,
    }


def test_drawn(measured, tmp_path):
    rows = [measured(predicted_us=30.0 + m, m=m) for m in (1, 8, 64, 512, 4096)]
    rows += [measured(predicted_us=30.0, kernel=f"kernel {number}") for number in range(5)]
    path = write_predictions_png(rows, tmp_path / "new" / "predictions.png")
    with Image.open(path) as picture:
        assert picture.width > 900 and picture.height > 500, "six panels in two rows"
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_nothing_to_draw(measured, tmp_path):
    with pytest.raises(ValueError, match="no measurement has a prediction"):
        write_predictions_png([measured()], tmp_path / "predictions.png")
