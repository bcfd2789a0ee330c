"""A picture with a palette shows the colors that were drawn, those of a legend's small dots too."""

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from experiments.harness.figures import new_figure, save_png
from sparsefront.results.plots import SERIES_COLORS

UNSEEN = 12  # of 255 in each channel


def test_a_color_of_few_pixels_stays_what_it_is(tmp_path):
    figure = new_figure(8, 6)
    many, few = figure.subplots(2)
    places = np.random.RandomState(0).rand(2, 3000)
    many.scatter(*places, c=places[0], cmap="viridis", alpha=0.4, linewidths=0)
    for place, color in enumerate(SERIES_COLORS):
        few.scatter(place, 0, color=color, s=36)
    with Image.open(save_png(figure, tmp_path / "picture.png")) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    for color in SERIES_COLORS:
        apart = np.abs(pixels - np.round(255 * np.array(to_rgb(color)))).max(axis=1)
        assert apart.min() <= UNSEEN, f"{color} is drawn {apart.min():.0f} off"
