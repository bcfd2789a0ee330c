"""The density of every layer: the numbers, and that they become a picture."""

import numpy as np
from matplotlib.image import imread

from sparsefront.results.mask_pictures import KEPT_COLOR, rgb
from sparsefront.results.plots import (
    COLORS,
    DENSE_COLOR,
    LayerDensity,
    layer_densities,
    pattern_color,
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


def test_the_chart_grows_with_the_layers(tmp_path):
    heights = []
    for count in (1, 40):
        bars = [LayerDensity(f"layer.{n}", 0.5, stays_dense=n % 2 == 1) for n in range(count)]
        path = write_density_png(bars, tmp_path / "masks" / f"{count}.png", target=0.25, title="a run")
        heights.append(imread(path).shape[0])
    assert heights[1] > heights[0] + 40 * 15


def test_only_a_density_that_was_asked_for_is_a_line(tmp_path):
    drawn = {}
    for target in (None, 0.25):
        bars = [LayerDensity("layer", 0.5, stays_dense=False)]
        picture = imread(write_density_png(bars, tmp_path / f"{target}.png", target=target, title="a run"))
        drawn[target] = int((np.rint(255 * picture[..., :3]) == rgb(DENSE_COLOR)).all(axis=-1).sum())
    assert drawn[0.25] > drawn[None] + 20, drawn


def test_bars_have_the_color_of_kept_weights_and_of_no_pattern(tmp_path):
    bars = [LayerDensity("layer", 0.5, stays_dense=False)]
    pixels = np.rint(255 * imread(write_density_png(bars, tmp_path / "one.png", target=0.25, title="a run"))[..., :3])
    colors = {KEPT_COLOR, *COLORS} - {pattern_color("dense")}  # a gray, which the edges of letters have
    drawn = {color: int((pixels == rgb(color)).all(axis=-1).sum()) for color in colors}
    assert drawn.pop(KEPT_COLOR) > 1000 and not any(drawn.values()), drawn
