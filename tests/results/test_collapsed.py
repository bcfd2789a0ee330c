"""Collapsed layers in tables, pages and records, old ones too."""

import io

from rich.console import Console

from sparsefront.results.page.run import write_run_page

LOST = {"blocks.0.fc1": 0.5, "blocks.0.fc2": 1.0, "blocks.1.fc2": 0.999}


def text_of(table) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(table)
    return " ".join(console.file.getvalue().split())


def test_the_page_marks_them_in_the_table_of_layers(make_result, tmp_path):
    lost = make_result(sparsity_per_layer=LOST, allocation="global_threshold")
    page = write_run_page(lost, tmp_path / "a.html", title="a").read_text()
    assert page.count('<td class="collapsed">') == 2 and '<td class="collapsed">0.500' not in page
    assert "allocation=per_layer, or allocation=global_threshold" in page
    assert '<td class="collapsed">' not in write_run_page(make_result(), tmp_path / "b.html", title="b").read_text()
