"""The comparison page in a real browser: nothing is fetched, the console stays empty, filters, slider and table work."""

import base64
import csv
import io
import json
from pathlib import Path

import pytest
from headless_browser import needs_browser
from page_scripts import CLICK, COUNT, LINES, WAIT

from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.page.run import write_run_page

pytestmark = needs_browser
ROOT = Path(__file__).parents[2]
SLIDE = (
    "{{ const slider = document.querySelector('#budget input'); slider.value = {}; "
    "slider.dispatchEvent(new Event('input')); }}"
)
BEST = (
    "Math.max(...[...now.view.points, ...now.view.dense]"
    ".filter((point) => point.speedup >= now.view.budget - 1e-9).map((point) => point.pick))"
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WINNER = "document.querySelector('[data-winner]').textContent"


def test_every_candidate_is_a_line_and_a_point(shown, mixed):
    results = mixed(200)
    page = shown(results)
    (group,) = split_comparable(results)
    assert page.evaluate(LINES) == len(group.points()) == 100
    assert page.evaluate("spotsOf.get(document.getElementById('chart-speed')).length") == len(group.points()) + 2
    assert page.evaluate("document.querySelector('#shown').textContent") == "100 of 100 points, 200 of 200 runs"
    assert (
        page.evaluate(COUNT.format("svg.chart .mark")) >= 3 and page.evaluate(COUNT.format("svg.chart .dominated")) == 3
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "fits a laptop's screen"


def test_times_fill_their_axis_and_close_ones_stay_close(shown, make_result):
    def places(*speedups):
        results = [
            make_result(run_id=str(speedup), sparsity_target=speedup / 4, speedup=speedup, sparse=speedup / 4)
            for speedup in speedups
        ]
        spots = "spotsOf.get(document.getElementById('chart-speed'))"
        page = shown(results)
        return page.evaluate(f"{spots}.filter(({{ point }}) => !point.dense).map(({{ x }}) => x / SIZE.width)")

    (low, high), (close, closer) = places(1.0, 2.0), places(1.001, 1.002)
    assert abs(high - low) > 0.6 and 0 < abs(closer - close) < 0.01  # of the width


def test_the_script_finds_the_front_that_python_finds(shown, mixed):
    results = mixed(200)
    page = shown(results)
    (group,) = split_comparable(results)
    front = page.evaluate("now.view.front.map((point) => [point.speedup, point.quality])")
    assert front == [pytest.approx(point) for point in group.front()]


def test_filters_choose_and_stay_in_the_address(shown, mixed):
    page = shown(mixed(200))
    page.evaluate(CLICK.format('[data-field="pattern"] [data-value="tile_wise"]'))
    page.evaluate(CLICK.format('[data-field="seed"] [data-value="1"]'))
    chosen = page.evaluate(LINES)
    assert 0 < chosen < 100
    assert page.evaluate("now.view.points.every((point) => point.pattern === 'tile_wise' && point.runs.length === 1)")
    page.evaluate(WAIT)
    address = page.evaluate("location.hash")
    assert address == "#pattern=tile_wise&seed=1&section=run-0"
    again = shown(mixed(200), address)
    assert again.evaluate(LINES) == chosen
    assert again.evaluate(COUNT.format('#filters [aria-pressed="true"]')) == 2
    page.evaluate(CLICK.format('[data-field="pattern"] [data-value="tile_wise"]'))
    assert page.evaluate(LINES) > chosen


def test_seeds_of_a_recovery_n_of_m_and_distribution_are_filters_where_they_differ(shown, make_result):
    def run(number, **changes):
        return make_result(run_id=str(number), seed=0, **changes)

    fields = "[...document.querySelectorAll('#filters fieldset')].map((box) => box.dataset.field)"
    again = [run(seed, recovery_seed=seed) for seed in (0, 1, 2)]
    page = shown(again)
    assert page.evaluate(fields) == ["recovery_seed"]
    page.evaluate(CLICK.format('[data-field="recovery_seed"] [data-value="2"]'))
    assert page.evaluate("now.view.points.map((point) => point.runs)") == [[2]]
    page.evaluate(WAIT)
    assert page.evaluate("location.hash") == "#recovery_seed=2&section=0"
    runs = [
        run(f"{name} {windows}", pattern_parameters={"distribution": name, "m": m}, n_of_m=windows)
        for name in ("free", "balanced")
        for m, windows in ((4, "2:4"), (None, "1:4 in 20, 3:32 in 4"))
    ]
    page = shown(runs)
    assert page.evaluate(fields) == ["n_of_m", "distribution"]
    page.evaluate(CLICK.format('[data-field="n_of_m"] [data-value="1:4 in 20, 3:32 in 4"]'))
    page.evaluate(CLICK.format('[data-field="distribution"] [data-value="balanced"]'))
    page.evaluate(WAIT)
    again = shown(runs, page.evaluate("location.hash"))
    chosen = "now.view.points.map((point) => valueOf('run_id', point.run))"
    assert again.evaluate(chosen) == ["balanced 1:4 in 20, 3:32 in 4"]


def test_a_recovery_that_follows_the_seed_needs_no_filter_of_its_own(shown, make_result):
    """Records before version 6 do not hold it."""
    runs = [make_result(run_id=str(seed), seed=seed, recovery_seed=seed or None) for seed in (0, 1, 2)]
    page = shown(runs)
    assert page.evaluate(COUNT.format('#filters [data-field="seed"] button')) == 3
    assert page.evaluate(COUNT.format('#filters [data-field="recovery_seed"]')) == 0


def test_settings_do_not_repeat_the_recovery_and_are_what_a_run_takes(shown, make_result):
    page = shown(
        [
            make_result(run_id="none", recovery=None, recovery_parameters={}),
            make_result(run_id="plain", recovery_parameters={"epochs": None}),
            make_result(run_id="short", recovery_parameters={"epochs": 1}),
        ]
    )
    cells = "[...document.querySelectorAll('#points tbody tr')].map((line) => [line.cells[2].innerText, line.cells[3].innerText])"
    assert sorted(page.evaluate(cells)) == [
        ["finetune", "recovery.epochs=1"],
        ["finetune", "recovery.epochs=null"],
        ["none", ""],
    ]
    assert page.evaluate("now.view.points.map((point) => nameOf(point))")[0] == "tile_wise 128 none"


def test_the_slider_names_the_best_that_is_fast_enough_and_its_command(shown, mixed):
    results = mixed(200)
    page = shown(results)
    page.evaluate(SLIDE.format(0))
    assert "dense" in page.evaluate(WINNER), "with time enough the trained-on dense network is the best"
    page.evaluate(SLIDE.format(1000))
    (group,) = split_comparable(results)
    fastest = max(group.points(), key=lambda point: point.x)
    assert fastest.candidate.pattern in page.evaluate(WINNER) and f"{fastest.x:.2f}×" in page.evaluate(WINNER)
    assert "at least" in page.evaluate("document.querySelector('#budget output').textContent")
    command = page.evaluate("document.querySelector('#budget code').textContent")
    assert command.startswith("python run.py model=vit_small") and f"pattern={fastest.result.choice.pattern}" in command
    for place in range(0, 1001, 50):
        page.evaluate(SLIDE.format(place))
        assert page.evaluate(f"now.view.winner.pick === {BEST}")
    page.evaluate(WAIT)
    assert "budget=" in page.evaluate("location.hash")


def test_dense_networks_alone_are_a_page_too(shown, make_result):
    dense = {"pattern": "dense", "recovery": None, "masked": None, "sparse": None, "val_dense": 0.98}
    page = shown([make_result(**dense, speedup=None, latency_sparse_ms=None, granularity=None)])
    assert page.evaluate("now.view.points.length") == 0 and "dense" in page.evaluate("document.body.innerText")


def test_what_is_better_than_dense_gained_points(shown, make_result):
    better = {"dense": 0.9, "sparse": 0.9008, "val_dense": 0.9, "val_sparse": 0.9012, "latency_device": "cuda"}
    page = shown([make_result(**better)])
    assert "0.08 points gained, at sparsity" in page.evaluate(WINNER)
    assert "0.08 points gained" in page.evaluate("tipText(now.view.points[0])")
    told = page.evaluate("document.querySelector('ul.sentences').innerText")
    assert "0.08 points gained on the reporting split, 0.12 gained held out" in told
    assert page.evaluate("[0.4, 0, -0.001, null].map((value) => lostText(value, {sign: 1}))") == [
        "0.40 points lost",
        "0.00 points lost",
        "0.00 points lost",
        "– points lost",
    ]


def test_numbers_are_rounded_as_in_the_terminal(shown, make_result):
    """21 of 32 samples were 65.62 % in the sentence and 65.63 % in the table."""
    page = shown([make_result(sparse=21 / 32, sparsity_achieved=0.8125, latency_device="cuda")])
    assert page.evaluate("qualityText(now.view.points[0])") == "65.62 %"
    assert page.evaluate("fractionText(now.view.points[0].sparsity)") == "0.812"
    values = [number / 16 for number in range(-40, 40)] + [1.005, 1.385, 0.285, -2.675, 53.124999, 99.995, 100.5]
    for digits in (0, 2, 3):
        written = page.evaluate(f"{values}.map((value) => fixed(value, {digits}))")
        assert [float(text) for text in written] == [float(f"{value:.{digits}f}") for value in values]


def test_the_held_out_part_may_be_drawn(shown, mixed):
    page = shown(mixed(200))
    label = "document.querySelector('#chart-speed text:last-of-type').textContent"
    drawn = "spotsOf.get(document.getElementById('chart-speed')).map((spot) => spot.y)"
    before = page.evaluate(drawn)
    assert "held out" not in page.evaluate(label)
    page.evaluate(
        "{ const split = document.querySelector('#split'); split.value = 'val'; split.dispatchEvent(new Event('change')); }"
    )
    assert page.evaluate(label).endswith(", held out") and page.evaluate(drawn) != before
    assert page.evaluate("now.view.points.every((point) => point.val_error > 0)")
    steps = page.evaluate(
        "now.view.front.map((point) => spotsOf.get(document.getElementById('chart-speed')).find((s) => s.point === point).y)"
    )
    assert steps == sorted(steps, reverse=True), "the front rises with the latency, where what decides is drawn"
    page.evaluate(WAIT)
    assert page.evaluate("location.hash") == "#split=val&section=run-0"


def test_the_axis_may_be_milliseconds(shown, mixed):
    page = shown(mixed(100), "#axis=latency_ms")
    assert "at most" in page.evaluate("document.querySelector('#budget output').textContent")
    assert page.evaluate("now.view.winner.latency_ms <= now.view.budget")


def test_a_point_tells_its_runs_and_layers_and_downloads_are_whole(shown, mixed):
    results = mixed(60)
    page = shown(results)
    page.evaluate(CLICK.format("#points tbody tr"))
    told = page.evaluate("document.querySelector('#details').innerText")
    assert "python run.py" in told and "of run run-" in told and "commit aaaa" in told
    assert "aaaa (kernels: as of the commit) ·" in told
    assert "± is the standard error of the test set" in page.evaluate("tipText(now.view.points[0])")
    assert "gathered_reference" in page.evaluate("document.querySelector('#details').innerHTML")
    everything = f"[...Array({len(results)}).keys()]"
    lines = list(csv.DictReader(io.StringIO(page.evaluate(f"csvOf({everything})"))))
    assert [line["run_id"] for line in lines] == [result.identity.run_id for result in results]
    records = json.loads(page.evaluate(f"JSON.stringify(recordsOf({everything}))"))
    for field in ("speedup", "val_sparse", "granularity", "latency_sparse_ms", "sparsity_target", "recovery"):
        assert [record[field] for record in records] == [result.value_of(field) for result in results]


def test_pictures_of_masks_are_in_the_page(browser, make_result, tmp_path):
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "fc1.png").write_bytes(base64.b64decode(PIXEL))
    page = tmp_path / "compare.html"
    browser.open(write_comparison([make_result()], page, title="one", folder_of=lambda result: tmp_path))
    browser.evaluate(CLICK.format("#points tbody tr"))
    assert browser.evaluate("document.querySelector('#details img').naturalWidth") == 1
    assert browser.evaluate("document.querySelector('#details img').alt") == "fc1"


def test_other_provenance_has_a_badge(shown, mixed):
    page = shown(mixed(60))
    assert page.evaluate("now.view.points.flatMap((point) => point.unlike).join()") == (
        ",".join(["commit and kernels bbbbbbbbb, elsewhere aaaaaaaaa"] * 2)
    )
    assert page.evaluate(COUNT.format("#points .badge")) == 2


def test_sections_are_chosen_and_hold_their_own_text(shown, mixed, make_result):
    page = shown([*mixed(30), make_result(model="bert", run_id="bert")])
    assert page.evaluate(COUNT.format("#section option")) == 2
    visible = (
        "[...document.querySelectorAll('section h2')].filter((one) => one.offsetParent).map((one) => one.textContent)"
    )
    first = page.evaluate(visible)
    page.evaluate(
        "{ const box = document.getElementById('section'); box.value = 1; box.dispatchEvent(new Event('change')); }"
    )
    assert page.evaluate(visible) != first
    page.evaluate(WAIT)
    assert page.evaluate("location.hash") == "#section=bert"


def test_every_shipped_recovery_has_an_outline_of_its_own(shown, make_result):
    recoveries = [file.stem for file in (ROOT / "conf" / "recovery").glob("*.yaml")] + ["my_own", "rigl"]
    page = shown([make_result(recovery=name, run_id=name) for name in recoveries])
    icons = "[...document.querySelectorAll('#filters [data-field=\"recovery\"] path')].map((path) => path.getAttribute('d'))"
    outlines = page.evaluate(icons)
    assert len(outlines) == len(set(outlines)) == len(recoveries) == 12
    assert page.evaluate("Object.values(SYMBOLS).every((draw) => !draw(8, 8, 5).includes('NaN'))")


def test_ranking_grid_verdicts_and_provenance_are_read_below_the_charts(shown, mixed):
    page = shown(mixed(60), verdicts_of=lambda group: ["n_m is better"])
    text = page.evaluate("document.body.innerText")
    for told in ("Patterns, by the area that they dominate", "What was measured", "n_m is better", "model vit_small"):
        assert told in text
    below = "[...document.querySelectorAll('section[data-section=\"0\"]')].at(-1)"
    assert page.evaluate(f"{below}.querySelectorAll('table').length") == 2
    assert page.evaluate(f"{below}.getBoundingClientRect().top > document.getElementById('points').offsetTop")
    fits = "[...document.querySelectorAll('section .wide')].every((box) => box.scrollWidth <= box.clientWidth)"
    assert page.evaluate(fits), "on a laptop's screen"
    assert "commit a" in text and "differs between these runs: commit" in text


def test_every_section_shows_its_own_tables_alone(shown, mixed):
    other = [result.with_values({"model": "bert", "run_id": f"bert-{n}"}) for n, result in enumerate(mixed(60))]
    page = shown([*mixed(60), *other], verdicts_of=lambda group: [f"verdict on {group.title.split()[0]}"])
    for place, model in enumerate(("bert", "vit_small")):
        page.evaluate(
            f"{{ const box = document.getElementById('section'); box.value = {place}; "
            "box.dispatchEvent(new Event('change')); }"
        )
        text = page.evaluate("document.body.innerText")
        assert text.count("Patterns, by the area that they dominate") == text.count("What was measured") == 1
        assert text.count("verdict on") == 1 and f"verdict on {model}" in text and f"model {model}" in text


def test_awkward_text_stays_text(shown, make_result):
    bad = "</script><img src=x onerror=alert(1)>"
    page = shown([make_result(run_id=bad, pattern=bad, n_of_m="<b>2:4"), make_result()])
    page.evaluate(CLICK.format("#points tbody tr"))
    assert page.evaluate(COUNT.format("img")) == 0 and page.evaluate(COUNT.format("td b")) == 0


def test_old_records_and_nothing_timed_are_still_shown(shown, make_result):
    nothing = dict.fromkeys(("latency_dense_ms", "latency_sparse_ms", "speedup", "speedup_low", "speedup_high"))
    page = shown(
        [make_result(**nothing, latency_device=None), make_result(**nothing, latency_device=None, sparse=0.5, seed=9)]
    )
    assert page.evaluate("document.getElementById('budget').hidden") and page.evaluate(LINES) == 1


def test_what_was_not_timed_is_hollow_since_nothing_beats_it(shown, mixed):
    nothing = dict.fromkeys(("latency_dense_ms", "latency_sparse_ms", "speedup", "speedup_low", "speedup_high"))
    page = shown([result.with_values(nothing | {"latency_device": None}) for result in mixed(30)])
    assert page.evaluate("document.querySelector('#chart-quality .dominated').getAttribute('d')") == ""
    marks = "[...document.querySelectorAll('#chart-quality .mark')].map((mark) => mark.getAttribute('fill'))"
    assert page.evaluate(marks) == ["#fff"] * page.evaluate("now.view.points.length")


def test_of_many_rows_few_are_drawn(shown, mixed):
    page = shown(mixed(10_000))
    for act in (SLIDE.format(500), CLICK.format('[data-field="pattern"] [data-value="n_m"]')):
        page.evaluate(act)
        assert page.evaluate(LINES) <= 100


def test_the_page_of_one_run_needs_no_script(browser, make_result, tmp_path):
    browser.problems.clear(), browser.requests.clear()
    browser.open(write_run_page(make_result(), tmp_path / "report.html", title="one"))
    assert browser.evaluate("document.querySelector('svg').getBoundingClientRect().width") > 300
    assert browser.problems == [] and [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
