"""Masks as pixels: every weight where and as it should be."""

import numpy as np
import pytest
import torch

from sparsefront.masks.groups import Boundaries
from sparsefront.results.mask_pictures import (
    EXACT_SIDE,
    KEPT_COLOR,
    PRUNED_COLOR,
    Scale,
    mask_image,
    pixel_density,
    rgb,
)


def random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5


def test_every_weight_has_the_color_of_its_fate():
    mask = random_mask(5, 7)
    pixels = mask_image(mask, Boundaries(), Scale(cell=3)).pixels
    assert pixels.shape == (15, 21, 3) and pixels.dtype == np.uint8
    for row in range(15):
        for column in range(21):
            kept = bool(mask[row // 3, column // 3])
            assert (pixels[row, column] == rgb(KEPT_COLOR if kept else PRUNED_COLOR)).all()


def test_pooled_pixels_average_what_is_there():
    mask = random_mask(5, 7)
    pooled = pixel_density(mask, Scale(pooled=2))
    assert pooled.shape == (3, 4)
    for row in range(3):
        for column in range(4):
            under = [
                float(mask[r, c])
                for r in range(2 * row, min(5, 2 * row + 2))
                for c in range(2 * column, min(7, 2 * column + 2))
            ]
            assert pooled[row, column] == pytest.approx(sum(under) / len(under))
    half = torch.tensor([[True, False], [False, True]])
    between = (rgb(KEPT_COLOR).astype(float) + rgb(PRUNED_COLOR)) / 2
    assert np.abs(mask_image(half, Boundaries(), Scale(pooled=2)).pixels[0, 0] - between).max() <= 0.5


def test_pooled_lines_fall_on_the_nearest_pixel():
    image = mask_image(random_mask(40, 4), Boundaries(rows=[17]), Scale(pooled=2))
    assert image.rows.groups == (9,)  # 17 / 2 = 8.5


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
