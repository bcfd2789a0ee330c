"""Pictures of masks and densities: every weight where and as it should be, as files and in the page of the run."""

import base64
import re

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.mask_pictures import (
    EXACT_SIDE,
    GAP,
    KEPT_COLOR,
    MARGIN,
    PRUNED_COLOR,
    PrunedLayers,
    Scale,
    choose_layers,
    mask_image,
    pixel_density,
    rgb,
    write_mask_pictures,
)
from sparsefront.results.run_report import Report, write_report


def pixels_of(path) -> np.ndarray:
    return np.rint(imread(path)[..., :3] * 255).astype(np.uint8)


def random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5


def pruned_layers(**changes) -> PrunedLayers:
    mask = random_mask(16, 8)
    parts = {"masks": {"a.0": mask, "a.1": ~mask, "conv": mask.reshape(16, 2, 2, 2)}, "sparsity": 0.5}
    return PrunedLayers(**(parts | {"pattern": ElementWise(), "pattern_text": "element_wise"} | changes))


def test_permuted_layer_in_both_orders(tmp_path):
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    permuted = torch.zeros(8, 8, dtype=torch.bool)
    permuted[:4, ::2], permuted[4:, ::3] = True, True  # vectors of 4
    permutation = Permutation(outputs=order)
    mask, pattern = permutation.invert(permuted), VectorWise(granularity=4)
    spec = MaskSpec({"a": permutation})
    pruned = pruned_layers(masks={"a": mask}, pattern=pattern, spec=spec)
    (path,) = write_mask_pictures(pruned, tmp_path, None)
    scale = Scale.of((8, 8))
    left = mask_image(mask, Boundaries(), scale).pixels
    right = mask_image(permuted, pattern.boundaries(permuted, 0.5), scale).pixels
    assert right.shape[0] == left.shape[0] + 1, "one line between two vectors"
    found, top = pixels_of(path), right.shape[0] + MARGIN
    start = MARGIN + left.shape[1] + GAP
    assert (found[-top : -top + left.shape[0], MARGIN : MARGIN + left.shape[1]] == left).all()
    assert (found[-top:-MARGIN, start : start + right.shape[1]] == right).all()


def test_the_page_holds_the_pictures(tmp_path, make_result):
    row = make_result(sparsity_per_layer={"a.0": 0.5, "a.1": 0.5, "conv": 0.5})
    written = write_report(row, tmp_path, Report(plot=False, mask_pictures=True, mask_layers=["conv"]), pruned_layers())
    assert written == [tmp_path / "masks", tmp_path / "report.html"]
    found = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)">', written[1].read_text())
    assert [name for name, _ in found] == ["density", "conv"]
    for name, content in found:
        assert base64.b64decode(content) == (tmp_path / "masks" / f"{name}.png").read_bytes()


def test_every_weight_has_its_color():
    mask = random_mask(5, 7)
    pixels = mask_image(mask, Boundaries(), Scale(cell=3)).pixels
    assert pixels.shape == (15, 21, 3) and pixels.dtype == np.uint8
    kept = np.kron(mask.numpy(), np.ones((3, 3), dtype=bool)).astype(bool)
    assert (pixels[kept] == rgb(KEPT_COLOR)).all() and (pixels[~kept] == rgb(PRUNED_COLOR)).all()


def test_pooled_pixels_average_what_is_there():
    mask = random_mask(5, 7)
    pooled = pixel_density(mask, Scale(pooled=2))
    means = [
        [mask[row : row + 2, column : column + 2].float().mean() for column in range(0, 7, 2)] for row in range(0, 5, 2)
    ]
    assert torch.allclose(pooled, torch.tensor(means))
    half = torch.tensor([[True, False], [False, True]])
    between = (rgb(KEPT_COLOR).astype(float) + rgb(PRUNED_COLOR)) / 2
    assert np.abs(mask_image(half, Boundaries(), Scale(pooled=2)).pixels[0, 0] - between).max() <= 0.5


@pytest.mark.parametrize(
    ("shape", "scale", "text"),
    [
        ((8, 8), Scale(cell=12), "a weight is 12 x 12 pixels"),
        ((384, 1536), Scale(), "a weight is a pixel"),
        ((EXACT_SIDE, 4), Scale(), "a weight is a pixel"),
        ((EXACT_SIDE + 1, 4), Scale(pooled=2), "a pixel is the mean density of 2 x 2 weights"),
        ((1024, 3 * EXACT_SIDE), Scale(pooled=3), "a pixel is the mean density of 3 x 3 weights"),
    ],
)
def test_scale_follows_from_the_longest_side(shape, scale, text):
    assert Scale.of(shape) == scale
    assert scale.text == text


PARTS = dict.fromkeys(("query", "key", "value", "output"), (8, 8)) | {"fc1": (16, 8), "fc2": (8, 16), "more": (4, 4)}
SHAPES = {f"encoder.{number}.{part}": shape for number in range(12) for part, shape in PARTS.items()}


def test_expressions_keep_the_networks_order():
    assert choose_layers(SHAPES, [r"\.fc2$", r"^encoder\.1\.query"]) == [
        *("encoder.0.fc2", "encoder.1.query"),
        *(f"encoder.{number}.fc2" for number in range(1, 12)),
    ]


def test_expression_that_finds_nothing():
    with pytest.raises(InvalidSetting, match=r"mask_layers=fc3: finds no layer .*encoder\.0\.query.* and 72 more"):
        choose_layers(SHAPES, ["fc2", "fc3"])


@pytest.mark.parametrize(
    ("expressions", "message"),
    [([], "must have at least 1 item.*null: a few"), (["("], "not a regular expression")],
)
def test_settings_that_no_layer_meets(expressions, message):
    with pytest.raises(InvalidSetting, match=f"mask_layers=.*{message}"):
        Report(mask_layers=expressions)


def test_it_is_rejected_before_training(composed):
    from sparsefront.config.validate import validate

    with pytest.raises(InvalidSetting, match=r"report\.mask_layers=quary: finds no layer that is pruned; there are "):
        validate(composed("report.mask_layers=[quary]", "trainer=cpu", "measure.device=cpu"))
