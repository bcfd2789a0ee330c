"""The pictures of a study: one color a pattern, no marker twice, no narrow axis."""

import shlex
from dataclasses import replace

import pytest
from made_study import FOLDER, MEASURED, line_of


def panel_of(modules, study, tmp_path):
    lines = modules["cells"].current_lines(study, tmp_path / "points.csv")
    return list(modules["draw"].panels(study, modules["cells"].cells_of(study, lines)))


def test_a_line_of_the_plot_joins_sparsities_of_one_pattern(modules, study, tmp_path):
    """A line of a table may be of one pattern at 50 % and of another at 75 %."""
    for point in modules["definition"].points(study, seeds=[0]):
        level = 0.5 if point.column == "50 %" else 0.75
        pattern = "n_m" if point.row == "2:4" and level == 0.5 else "element_wise"
        found = line_of(0.8, pattern=pattern, sparsity_target=level, sparsity_achieved=level)
        modules["cells"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    (panel,) = panel_of(modules, study, tmp_path)
    assert panel.by_sparsity
    joined = {key: [modules["draw"].sparsity_of(cell) for cell in cells] for key, cells in panel.series().items()}
    assert joined["EW", "element_wise"] == [50, 75]
    assert joined["2:4", "n_m"] == [50] and joined["2:4", "element_wise"] == [75]


@pytest.mark.parametrize("name", MEASURED)
def test_plots_by_sparsity_are_of_levels_and_no_marker_stands_for_two_lines(modules, name):
    study = modules["definition"].read_study(name)
    found = panel_of(modules, study, FOLDER.parent / name)
    assert found
    for panel in found:
        shapes = modules["draw"].SHAPES
        assert len(set(shapes)) == len(shapes)
        if panel.by_sparsity:
            assert panel.table.levels and len(panel.columns) > 1 and len(panel.rows) <= len(shapes)
    if name == "recoveries":
        assert not any(panel.by_sparsity for panel in found), "its columns are patterns"


def test_every_mark_has_the_color_of_its_pattern_and_no_axis_is_narrow(modules, study, tmp_path, monkeypatch):
    from matplotlib.colors import to_hex

    from sparsefront.results.plots import pattern_color

    columns = {"2:4": ("pattern=n_m", "sparsity=0.5"), "EW": ("pattern=element_wise", "sparsity=0.75")}
    rows = {"finetune": modules["definition"].Row(), "distill": modules["definition"].Row()}
    tables = (replace(study.tables[0], title="Recoveries", columns=columns, rows=rows), study.tables[0])
    both = replace(study, tables=tables, targets={})
    for point in modules["definition"].points(both, seeds=[0]):
        pattern = "n_m" if "2:4" in (point.column, point.row) else "element_wise"
        found = line_of(0.8, pattern=pattern, sparsity_achieved=0.5 + 1e-4 * (point.column == "75 %"))
        modules["cells"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    drawn = []
    monkeypatch.setattr(modules["draw"], "save_png", lambda figure, path: drawn.append(figure))
    modules["page"].page(both, tmp_path)
    (figure,) = drawn
    axes = {ax.get_title() or ax.get_xlabel(): ax for ax in figure.get_axes()}
    assert all(ax.get_xlim()[1] - ax.get_xlim()[0] >= 3 for ax in axes.values())
    for title, pattern in (("2:4", "n_m"), ("EW", "element_wise")):
        marks = {to_hex(line.get_color()) for line in axes[title].get_lines() if line.get_marker() == "o"}
        assert marks == {pattern_color(pattern)}
    assert [text.get_text() for text in axes["2:4"].get_yticklabels()] == ["finetune", "distill"]
    legend = {text.get_text(): line for text, line in zip(*legend_of(axes["sparsity, %"]))}
    assert to_hex(legend["2:4"].get_color()) == pattern_color("n_m")
    assert len({line.get_marker() for line in legend.values()}) == len(legend) == 3


def legend_of(axes) -> tuple[list, list]:
    legend = axes.get_legend()
    return legend.get_texts(), legend.get_lines()
