"""The density of every layer: the numbers, and that they become a picture."""

import numpy as np
from matplotlib.image import imread

from sparsefront.results.mask_pictures import rgb
from sparsefront.results.plots import (
    DENSE_COLOR,
    LayerDensity,
    layer_densities,
    write_density_png,
)


def test_densities_follow_the_result(make_result):
    result = make_result(
        sparsity_per_layer={"z.first": 0.75, "a.second": 0.0, "m.third": 0.0}, dense_layers={"a.second": "too small"}
    )
    assert layer_densities(result) == [
        LayerDensity("z.first", 0.25, stays_dense=False),
        LayerDensity("a.second", 1.0, stays_dense=True),
        LayerDensity("m.third", 1.0, stays_dense=False),
    ]


def test_only_a_density_that_was_asked_for_is_a_line(tmp_path):
    drawn = {}
    for target in (None, 0.25):
        bars = [LayerDensity("layer", 0.5, stays_dense=False)]
        picture = imread(write_density_png(bars, tmp_path / f"{target}.png", target=target, title="a run"))
        drawn[target] = int((np.rint(255 * picture[..., :3]) == rgb(DENSE_COLOR)).all(axis=-1).sum())
    assert drawn[0.25] > drawn[None] + 20, drawn
