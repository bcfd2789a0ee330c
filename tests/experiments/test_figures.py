"""A figure whose text leaves the canvas is not written; equal figures give equal bytes."""

import pytest

from experiments.harness.figures import new_figure, paper_style, save_svg, small_axes


def test_text_beyond_the_canvas(tmp_path):
    figure = new_figure()
    small_axes(figure.axes[0], x="M", title="speedup " * 40)
    with pytest.raises(ValueError, match="leave the canvas"):
        save_svg(figure, tmp_path / "wide.svg")


def test_equal_figures_give_equal_bytes(tmp_path):
    @paper_style
    def draw(name):
        figure = new_figure(2)
        figure.axes[0].plot([1, 2], [3, 4])
        return save_svg(figure, tmp_path / name).read_bytes()

    assert draw("one.svg") == draw("two.svg")
