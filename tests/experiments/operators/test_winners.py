"""Which kernel wins which cell, and each M of one weight: dense where no kernel is faster, and only kernels with all shapes."""

import csv
import math
from dataclasses import replace

import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from experiments.operators.draw import main
from experiments.operators.measurements import Weight
from experiments.operators.winners import (
    CSV_COLUMNS,
    FEWEST_SIZES,
    Times,
    _largest,
    times_by_m,
    winners,
    write_winners_png,
)
from sparsefront.results.plots import COLORS, DENSE_COLOR

PANEL = ("fp16", "feature_major", 128, "equal", "gathered")


def test_geometric_mean_over_shapes_decides(measured):
    cells = winners(
        [
            measured(1.0, k=1024, kernel="even"),
            measured(1.0, k=2048, kernel="even"),
            measured(0.5, k=1024, kernel="split"),
            measured(3.0, k=2048, kernel="split"),
        ]
    )[PANEL]
    assert set(cells) == {(4096, 0.5)}
    assert cells[4096, 0.5].kernel == "split" and cells[4096, 0.5].speedup == pytest.approx(math.sqrt(1.5))
    assert not cells[4096, 0.5].loses


def test_losses_are_losses(measured):
    assert winners([measured(0.99)])[PANEL][4096, 0.5].loses
    assert winners([measured(1.0)])[PANEL][4096, 0.5].loses, "as fast as dense is no win"


def test_a_kernel_with_fewer_shapes_does_not_win(measured):
    rows = [measured(1.5, k=k, kernel="all") for k in (1024, 2048)] + [measured(9.0, kernel="one of two")]
    assert winners(rows)[PANEL][4096, 0.5].kernel == "all"
    rows = [measured(1.5, k=1024, kernel="a"), measured(9.0, k=2048, kernel="b")]
    assert winners(rows)[PANEL][4096, 0.5].kernel == "b", "where none has all, those with the most"


def test_masks_that_miss_the_sparsity_share_its_cell(measured):
    """At 1024 inputs blocks of 128 keep one of eight for 90 %."""
    fine = [measured(1.5, k=k, sparsity=0.8999, kernel="fine") for k in (1024, 4096)]
    coarse = [measured(2.0, k=k, sparsity=missed, kernel="coarse") for k, missed in ((1024, 0.875), (4096, 0.90625))]
    cells = winners([*fine, *coarse])[PANEL]
    assert {cell: winner.kernel for cell, winner in cells.items()} == {(4096, 0.9): "coarse"}
    assert set(winners(coarse)[PANEL]) == {(4096, 0.88), (4096, 0.91)}, "no kernel has 90 % in every shape"


def test_levels_that_both_were_asked_for_stay_apart(measured):
    assert set(winners([measured(sparsity=0.875), measured(sparsity=0.9)])[PANEL]) == {(4096, 0.88), (4096, 0.9)}


def test_what_was_asked_for_names_the_cell(measured):
    """Where the file tells it, no level has to be guessed from sparsities that masks missed."""
    rows = [measured(sparsity=missed, asked_sparsity=0.875, k=k) for k, missed in ((1024, 0.86), (2048, 0.89))]
    assert set(winners(rows)[PANEL]) == {(4096, 0.875)}


def test_layouts_of_one_kernel_look_alike(measured):
    rows = [measured(2.0), measured(2.0, kernel="gathered_sm90", layout="row_major")]
    found = winners(rows)
    assert {cells[4096, 0.5].kernel for cells in found.values()} == {"gathered_sm90"} and len(found) == 2


def test_one_dtype_a_picture(measured, tmp_path):
    with pytest.raises(ValueError, match="one dtype, not of bf16, fp16"):
        write_winners_png([measured(), measured(dtype="bf16")], tmp_path / "winners.png")


def test_largest(measured, dense_weight):
    balanced = Weight("n_m", "n_m", 4, "balanced")
    blocks = Weight("blocked", "block_wise", 128, "equal")
    others = [measured(layout="row_major"), measured(weight=balanced), measured(dtype="bf16"), measured(weight=blocks)]
    found = winners([measured(), *others, measured(weight=dense_weight)])
    assert set(found) == {
        PANEL,
        ("fp16", "row_major", 128, "equal", "gathered"),
        ("fp16", "feature_major", 128, "equal", "blocked"),
        ("fp16", "feature_major", 4, "balanced", "n_m"),
        ("bf16", "feature_major", 128, "equal", "gathered"),
    }


def colors(path) -> set[tuple[int, int, int]]:
    """Those that fill at least a hundredth of the picture."""
    with Image.open(path) as picture:
        counted = picture.convert("RGB").getcolors(1 << 20)
        return {color for count, color in counted if count > picture.width * picture.height / 100}


def test_drawn_with_dense_where_it_wins(measured, tmp_path):
    black = tuple(round(255 * part) for part in to_rgb(DENSE_COLOR))
    lost = [measured(0.5), measured(2.0, m=1), measured(2.0, m=1, weight=Weight("gathered", "tile_wise", 64, ""))]
    assert black in colors(write_winners_png(lost, tmp_path / "new" / "winners.png"))
    assert black not in colors(write_winners_png(lost[1:], tmp_path / "winners.png"))


def test_nothing_to_draw(tmp_path, measured, dense_weight):
    with pytest.raises(ValueError, match="no sparse measurement"):
        write_winners_png([measured(weight=dense_weight)], tmp_path / "winners.png")


def test_kernels_have_no_color_of_a_pattern(measured, tmp_path):
    patterns = {tuple(round(255 * part) for part in to_rgb(color)) for color in COLORS}
    rows = [measured(2.0, m=m, kernel=f"kernel {m}") for m in range(1, 11)]
    drawn = colors(write_winners_png(rows, tmp_path / "winners.png"))
    assert len(drawn) >= 10 and not drawn & patterns


BY_M_WEIGHT = Weight("n_m", "n_m", 4, "balanced")
SIZES = (1, 4, 16, 64, 256, 1024)
TIMES = {  # of a kernel at each of these M, None where it was not measured
    "n_m_small_m": (5, 10, 40, 160, None, None),
    "n_m_mma": (10, 10, 10, 20, None, None),
    "n_m_rebuilt": (90, 90, 90, 90, 90, 180),
}
DENSE = (10, 10, 10, 20, 45, 160)


@pytest.fixture
def rows(measured):
    """The kernels above on one weight, row-major."""
    shape = {"weight": BY_M_WEIGHT, "k": 4096, "n": 4096, "layout": "row_major"}
    return [
        measured(kernel=kernel, m=m, latency_us=float(time), dense_us=float(dense), **shape)
        for kernel, times in TIMES.items()
        for m, time, dense in zip(SIZES, times, DENSE)
        if time is not None
    ]


def test_the_fastest_and_its_speedup(rows):
    (times,) = times_by_m(rows).values()
    assert [times.fastest(m) for m in (1, 16, 64, 256)] == ["n_m_small_m", "n_m_mma", "n_m_mma", "n_m_rebuilt"]
    assert [times.speedup(m) for m in (1, 16, 1024)] == [2.0, 1.0, pytest.approx(160 / 180)]


def test_kernels_cross_where_they_take_the_same_time(rows):
    (times,) = times_by_m(rows).values()
    first, second = times.crossings()
    assert (first.before, first.after, first.at) == ("n_m_small_m", "n_m_mma", pytest.approx(4.0))
    assert (second.before, second.after, second.low, second.high, second.at) == (
        "n_m_mma",
        "n_m_rebuilt",
        64,
        256,
        None,
    )


def test_halfway_in_both_logarithms():
    times = Times({4: {"a": 1.0, "b": 3.0}, 64: {"a": 3.0, "b": 1.0}}, {4: 2.0, 64: 1.0})
    (crossing,) = times.crossings()
    assert crossing.at == pytest.approx(16.0)


def test_dense_takes_over_once(rows):
    (times,) = times_by_m(rows).values()
    (crossing,) = times.dense_crossings()
    assert (crossing.before, crossing.after) == ("sparse", "dense")
    assert crossing.at == pytest.approx(64.0), "a tie at 64, twice as slow at 256"


def test_what_has_few_sizes_or_one_kernel_is_left_out(rows, measured, dense_weight):
    few = [one for one in rows if one.m in SIZES[: FEWEST_SIZES - 1]]
    alone = [one for one in rows if one.kernel == "n_m_rebuilt"]
    dense = [measured(weight=dense_weight, kernel=name, m=m) for name in ("cublas", "cublas_wt") for m in SIZES]
    assert not times_by_m(few) and not times_by_m(alone) and not times_by_m(dense)


def test_the_command_writes_a_table_and_a_picture(rows, results_file, tmp_path):
    assert main([str(results_file(rows)), "-o", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "kernels_by_m.csv").open() as file:
        lines = {int(line["m"]): line for line in csv.DictReader(file)}
    assert list(lines[1]) == CSV_COLUMNS and list(lines) == list(SIZES)
    found = [
        (lines[m]["kernel"], lines[m]["speedup"], lines[m]["next_kernel"], lines[m]["crosses_at_m"]) for m in SIZES
    ]
    assert found[0] == ("n_m_small_m", "2", "", "")
    assert ("n_m_mma", "1", "n_m_rebuilt", "") in found, "not measured at both M"
    assert ("n_m_small_m", "1", "n_m_mma", "4") in found
    assert lines[64]["crosses_dense_at_m"] == "64"
    with Image.open(tmp_path / "out" / "kernels_by_m.png") as picture:
        assert picture.width >= 400


def test_the_picture_shows_of_each_layout_the_weight_with_most_lines(rows, measured):
    others = [replace(one, k=512, sparsity=sparsity) for one in rows for sparsity in (0.5, 0.75)]
    panels = _largest(times_by_m([*rows, *others, *(replace(one, layout="feature_major") for one in rows)]))
    assert {key: len(part) for key, part in panels.items()} == {
        ("fp16", "row_major", 512, 4096): 2,
        ("fp16", "feature_major", 4096, 4096): 1,
    }
