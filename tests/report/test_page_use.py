"""The comparison page for those who come by a link, have no mouse, or a narrow window."""

import pytest
from headless_browser import find_browser
from page_scripts import CLICK, COUNT, LINES, WAIT

from sparsefront.report.page.run import write_run_page

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed")


def test_without_a_held_out_part_the_reporting_split_is_drawn(shown, mixed, make_result):
    """The choice of what is drawn is kept from one section to the next, where it left empty charts and could not be changed."""
    full = {"model": "bert", "val_sparse": None, "val_dense": None, "dataset_parameters": {"valid_fraction": 0}}
    page = shown([*mixed(30), *(make_result(**full, run_id=name, pattern=name) for name in ("n_m", "uniform"))])
    chosen = (
        "{{ const box = document.getElementById('{}'); box.value = '{}'; box.dispatchEvent(new Event('change')); }}"
    )
    drawn = "spotsOf.get(document.getElementById('chart-speed')).filter(({ point }) => !point.dense).length"
    label = "document.querySelector('#chart-speed text:last-of-type').textContent"
    page.evaluate(chosen.format("split", "val"))
    page.evaluate(chosen.format("section", 1))
    assert page.evaluate(drawn) == 2 and page.evaluate(label) == "accuracy, %"
    page.evaluate(chosen.format("section", 0))
    assert page.evaluate(drawn) > 2 and page.evaluate(label) == "accuracy, %, held out"


def test_a_value_of_a_link_that_no_run_has_can_be_taken_back(shown, mixed):
    """As of a page that was written anew from other runs."""
    page = shown(mixed(60), "#pattern=gone")
    assert page.evaluate(LINES) == 0
    page.evaluate(CLICK.format('[data-field="pattern"] [data-value="gone"]'))
    assert page.evaluate(LINES) == page.evaluate("DATA.sections[0].points.length") > 0


def test_a_link_to_a_point_finds_it_in_a_page_of_more_runs(shown, mixed):
    results = mixed(60)
    page = shown(results[20:])
    page.evaluate(CLICK.format("#points tbody tr"))
    page.evaluate(WAIT)
    told, address = (
        page.evaluate(what) for what in ("document.querySelector('#details h3').textContent", "location.hash")
    )
    again = shown(results, address)
    assert again.evaluate("document.querySelector('#details h3').textContent") == told


def test_a_link_that_was_cut_short_still_opens(shown, mixed):
    page = shown(mixed(60), "#pattern=tile_wise,1%253A4%2")
    assert page.evaluate("[...state.filters.pattern]") == ["tile_wise", "1%3A4%2"]
    assert page.evaluate("now.view.points.every((point) => point.pattern === 'tile_wise')")
    assert page.evaluate(LINES) > 0


def test_headings_and_lines_are_pressed_by_the_keyboard_too(shown, mixed):
    page = shown(mixed(60))
    press = (
        "{{ document.querySelector('{}').focus(); document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {{ key: '{}', bubbles: true, cancelable: true }})); }}"
    )
    page.evaluate(press.format("#points th:nth-child(10)", "Enter"))
    assert page.evaluate("state.sort") == "speedup"
    assert page.evaluate("document.activeElement.innerText") == "speedup ▲", "though the headings were drawn anew"
    page.evaluate(press.format("#points tbody tr:nth-child(3)", " "))
    assert page.evaluate("document.activeElement.matches('tr.chosen:nth-child(3)')")
    assert "python run.py" in page.evaluate("document.querySelector('#details').innerText")


@pytest.fixture
def narrow(browser):
    """The window is as narrow as that of a phone."""
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    yield
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_plots_of_a_run_fit_a_narrow_window(narrow, browser, make_result, tmp_path):
    curve = [{"batch_size": 4, "sequence_length": None, "latency_dense_ms": 1.0, "latency_sparse_ms": 0.5}]
    browser.open(write_run_page(make_result(curve=curve), tmp_path / "report.html", title="one"))
    assert browser.evaluate(COUNT.format("body > svg")) == 2
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_window_scrolls_down_alone(narrow, shown, make_result):
    long = {"latency_kernel": "+".join(["gathered_cuda_feature_major"] * 9), "gpu": "NVIDIA H100 80GB HBM3"}
    reason = {"unsupported": {f"kernel_{number}": "takes float32, not torch.float16" for number in range(40)}}
    runs = [make_result(run_id=name, model=name, kernel_per_layer={"fc": reason}, **long) for name in ("bert", "vit")]
    page = shown(runs)
    page.evaluate(CLICK.format("#points tbody tr"))
    page.evaluate(CLICK.format("#details summary"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.querySelector('#details td.reason').offsetWidth") < 1000, "it folds"
