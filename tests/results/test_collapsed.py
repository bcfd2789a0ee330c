"""Collapsed layers in tables, pages and records, old ones too."""

import io

from rich.console import Console

from sparsefront.results.columns import shown_columns
from sparsefront.results.page.run import write_run_page
from sparsefront.results.tables import results_table, run_table

LOST = {"blocks.0.fc1": 0.5, "blocks.0.fc2": 1.0, "blocks.1.fc2": 0.999}


def text_of(table) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(table)
    return " ".join(console.file.getvalue().split())


def test_compare_counts_them_in_a_column(make_result):
    results = [
        make_result(sparsity_per_layer=LOST),
        make_result(sparsity_per_layer=dict.fromkeys(LOST, 0.75)),
        make_result(),
    ]
    columns, _ = shown_columns([*results, make_result(sparsity_per_layer={})])
    (column,) = (column for column in columns if column.field == "collapsed_layers")
    assert [column.value(result) for result in results] == [2, 0, 0]
    assert column.value(make_result(sparsity_per_layer={})) is None, "nothing is known of layers that are not there"
    assert "collapsed_" in text_of(results_table(results)), "a heading, which folds at its underscore"
    assert "collapsed_layers 0" in text_of(results_table(results[1:])), "where no result has any it stands in the title"


def test_the_terminal_names_them(make_result):
    lost = make_result(sparsity_per_layer=LOST, dense_layers={})
    assert "layers collapsed 2: blocks.0.fc2 lost every weight, blocks.1.fc2 kept at most 0.001" in text_of(
        run_table(lost)
    )
    assert "layers collapsed none" in text_of(run_table(make_result()))


def test_the_page_marks_them_in_the_table_of_layers(make_result, tmp_path):
    lost = make_result(sparsity_per_layer=LOST, allocation="global_threshold")
    page = write_run_page(lost, tmp_path / "a.html", title="a").read_text()
    assert page.count('<td class="collapsed">') == 2 and '<td class="collapsed">0.500' not in page
    assert "allocation=per_layer, or allocation=global_threshold" in page
    assert '<td class="collapsed">' not in write_run_page(make_result(), tmp_path / "b.html", title="b").read_text()
