"""The comparison page for those who come by a link, have no mouse, or a narrow window."""

import pytest
from headless_browser import needs_browser
from page_scripts import CLICK, WAIT

from sparsefront.results.comparable import split_comparable
from sparsefront.results.statistics import picked_as

pytestmark = needs_browser


PICKED = """(() => {
  const column = [...document.querySelectorAll('#points thead th')].findIndex((cell) => cell.innerText.startsWith('picked'));
  return [...document.querySelectorAll('#points tbody tr')].map(({ cells }) => [cells[0].innerText, cells[column].innerText]);
})()"""


def test_the_script_picks_what_python_picks(shown, mixed):
    results = mixed(200)
    results.append(results[0].with_values({"run_id": "far", "pattern": "far", "sparsity_achieved": 0.31}))
    results.append(results[0].with_values({"run_id": "search", "allocation_parameters": {"speedup": 1.5}}))
    page = shown(results)
    (group,) = split_comparable(results)
    found = page.evaluate(
        "now.view.points.map((point) => [point.runs.map((run) => valueOf('run_id', run)), point.picked])"
    )
    picked = picked_as(group.candidates)
    assert {tuple(runs): told for runs, told in found if told is not None} == picked
    assert {"winner", "recipe", "0.31 achieved", "has a budget"} == set(picked.values())


def test_what_is_picked_follows_the_filters(shown, make_result):
    """The winner of all seeds stood beside a better held-out metric of the seed that was asked for."""
    vals = {("n_m", 0): 0.90, ("n_m", 1): 0.96, ("tile_wise", 0): 0.92, ("tile_wise", 1): 0.93}
    runs = [
        make_result(run_id=str(n), pattern=pattern, seed=seed, val_sparse=val, sparsity_achieved=0.74 + 0.02 * seed)
        for n, ((pattern, seed), val) in enumerate(vals.items())
    ]
    page = shown(runs)
    assert dict(page.evaluate(PICKED)) == {"n_m 128": "winner", "tile_wise 128": "recipe"}
    page.evaluate(CLICK.format('[data-field="seed"] [data-value="0"]'))
    assert dict(page.evaluate(PICKED)) == {"n_m 128": "recipe", "tile_wise 128": "winner"}
    assert page.evaluate("document.querySelector('#shown').textContent") == "2 of 2 points, 2 of 4 runs"
    page.evaluate(CLICK.format('[data-field="pattern"] [data-value="n_m"]'))
    assert dict(page.evaluate(PICKED)) == {"n_m 128": "recipe"}, "it has no rivals"
    assert "From here on over 4 runs, whatever is filtered above" in page.evaluate("document.body.innerText")


def test_dense_is_that_of_the_seeds_that_are_shown(shown, make_result):
    """The median of all seeds stood beside a run of one, whose points are lost against its own."""
    dense = {0: 0.90, 1: 0.92, 2: 0.97, 3: 0.99}
    runs = [
        make_result(run_id=str(seed), seed=seed, dense=value, val_dense=value - 0.5, latency_dense_ms=5.0 + seed)
        for seed, value in dense.items()
    ]
    page = shown(runs)
    (group,) = split_comparable(runs)
    told = "now.view.dense.map(({ quality, val, latency_ms }) => [quality, val, latency_ms])"
    assert page.evaluate(told) == [[group.dense_quality(), pytest.approx(44.5), 6.5]] and group.dense_quality() == 94.5
    page.evaluate(CLICK.format('[data-field="seed"] [data-value="1"]'))
    assert page.evaluate(told) == [[92.0, pytest.approx(42.0), 6.0]]
    page.evaluate(CLICK.format('[data-field="seed"] [data-value="3"]'))
    assert page.evaluate(told) == [[95.5, pytest.approx(45.5), 7.0]]


def test_a_link_opens_its_section_in_a_page_of_more_runs(shown, mixed, make_result):
    """It named the section's place, or none: another model's were shown."""
    title = "document.querySelector('section:not([hidden]) h2').textContent"
    few, many = [make_result(model="bert", run_id="bert", sparsity_target=0.5)], mixed(30)
    page = shown(few, "#sort=pattern")
    page.evaluate(WAIT)
    address, told = page.evaluate("location.hash"), page.evaluate(title)
    for more in ([*few, *many], [*many, *few, make_result(model="vit", run_id="vit")]):
        assert shown(more, address).evaluate(title) == told
        assert shown(more, "#point=bert").evaluate(title) == told, "of a link without a section"
    assert page.evaluate("document.getElementById('lost').hidden")


def test_headings_and_lines_are_pressed_by_the_keyboard_too(shown, mixed):
    page = shown(mixed(60))
    press = (
        "{{ document.querySelector('{}').focus(); document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {{ key: '{}', bubbles: true, cancelable: true }})); }}"
    )
    page.evaluate(press.format("#points th:nth-child(10)", "Enter"))
    assert page.evaluate("state.sort") == "-speedup"
    assert page.evaluate("document.activeElement.innerText") == "speedup ▼", "though the headings were drawn anew"
    page.evaluate(press.format("#points tbody tr:nth-child(3)", " "))
    assert page.evaluate("document.activeElement.matches('tr.chosen:nth-child(3)')")
    assert "python run.py" in page.evaluate("document.querySelector('#details').innerText")


@pytest.fixture
def narrow(browser):
    """The window is as narrow as that of a phone."""
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    yield
    browser.call("Emulation.clearDeviceMetricsOverride")
