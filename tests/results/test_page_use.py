"""The comparison page for those who come by a link, have no mouse, or a narrow window."""

import pytest
from headless_browser import needs_browser
from page_scripts import CLICK, COUNT, LINES, WAIT

from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.run import write_run_page
from sparsefront.results.statistics import picked_as

pytestmark = needs_browser


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


def test_downloads_hold_the_runs_of_the_points(shown, make_result):
    """Means over their lines are those of the page: no seed counts twice, and no dense network among the sparse ones."""
    nothing = dict.fromkeys(("sparse", "masked", "speedup", "latency_sparse_ms", "recovery"))
    old, new = (make_result(run_id=f"{year}", time=f"{year}-01-02T03:04:05+00:00") for year in (2025, 2026))
    page = shown([old, new, make_result(run_id="dense", pattern="dense", **nothing)])
    assert page.evaluate("document.querySelector('#shown').textContent") == "1 of 1 point, 1 of 1 run"
    records = page.evaluate("recordsOf(now.view.points.flatMap((point) => point.runs))")
    assert [record["run_id"] for record in records] == ["2026"]
    assert records[0]["dense"] == new.quality.dense and records[0]["latency_dense_ms"] == new.speed.latency_dense_ms
    assert "dense networks are in the fields" in page.evaluate("document.getElementById('csv').title")


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


@pytest.mark.parametrize(("sparse", "drawn"), [(0.871, 1), (0.87, 0)])
def test_who_lost_just_three_points_is_close_to_dense(shown, make_result, sparse, drawn):
    page = shown([make_result(dense=0.901, sparse=sparse)])
    page.evaluate("(state.within = 3, showSection())")
    spots = "spotsOf.get(document.getElementById('chart-speed')).filter(({ point }) => !point.dense).length"
    assert page.evaluate(spots) == drawn


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


def test_a_section_is_named_by_a_run_of_its_own(shown, make_result):
    """A network that was not recovered stands beside every budget of a recovery."""
    runs = [make_result(run_id="none", recovery=None)]
    runs += [make_result(run_id=f"{steps} steps", recovery_steps=steps) for steps in (10, 20)]
    page = shown(runs)
    assert page.evaluate("DATA.sections.map((section, place) => nameOfSection(place))") == ["10 steps", "20 steps"]


@pytest.mark.parametrize("address", ["#section=gone", "#point=gone", "#section=run-1&point=gone"])
def test_a_link_to_a_run_that_is_not_there_says_so(shown, mixed, make_result, address):
    page = shown([*mixed(30), make_result(model="bert", run_id="bert")], address)
    assert page.evaluate("document.getElementById('lost').innerText") == (
        "This link names run gone, which is not in this page."
    )
    assert page.evaluate("state.section") == 0
    page.evaluate(
        "{ const box = document.getElementById('section'); box.value = 1; box.dispatchEvent(new Event('change')); }"
    )
    assert page.evaluate("document.getElementById('lost').hidden")


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


def test_plots_of_a_run_fit_a_narrow_window(narrow, browser, make_result, tmp_path):
    curve = [{"batch_size": 4, "sequence_length": None, "latency_dense_ms": 1.0, "latency_sparse_ms": 0.5}]
    browser.open(write_run_page(make_result(curve=curve), tmp_path / "report.html", title="one"))
    assert browser.evaluate(COUNT.format("body > svg")) == 2
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_charts_can_be_read_in_a_narrow_window(narrow, shown, mixed):
    page = shown(mixed(60))
    shown_as = "text.getBBox().height * text.ownerSVGElement.clientWidth / SIZE.width"
    assert page.evaluate(f"[...document.querySelectorAll('svg.chart text')].every((text) => {shown_as} >= 9)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture
def printed(browser):
    """As on paper of A4, inside its margins."""
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.call("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    yield
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_paper_holds_whole_tables_commands_and_filters(printed, shown, mixed):
    """They were cut off at its edge, and a chosen filter was white on white."""
    kernel = "+".join(["gathered_sm90_feature_major"] * 4)
    page = shown([run.with_values({"latency_kernel": kernel}) for run in mixed(120)], "#seed=1&point=run-1")
    page.evaluate(CLICK.format("#details summary"))
    cut = (
        "[...document.querySelectorAll('.wide, .command code')].filter((box) => box.scrollWidth > box.clientWidth + 1)"
    )
    assert page.evaluate(f"{cut}.length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pressed = "getComputedStyle(document.querySelector('[aria-pressed=\"true\"]'))"
    assert page.evaluate(f"[{pressed}.color, {pressed}.backgroundColor]") == ["rgb(28, 28, 28)", "rgba(0, 0, 0, 0)"]
    assert page.evaluate("document.getElementById('csv').offsetParent === null")


def test_a_narrow_window_scrolls_down_alone(narrow, shown, make_result):
    long = {"latency_kernel": "+".join(["gathered_sm90_feature_major"] * 9), "gpu": "NVIDIA H100 80GB HBM3"}
    reason = {"unsupported": {f"kernel_{number}": "takes float32, not torch.float16" for number in range(40)}}
    runs = [make_result(run_id=name, model=name, kernel_per_layer={"fc": reason}, **long) for name in ("bert", "vit")]
    page = shown(runs)
    page.evaluate(CLICK.format("#points tbody tr"))
    page.evaluate(CLICK.format("#details summary"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.querySelector('#details td.reason').offsetWidth") < 1000, "it folds"
