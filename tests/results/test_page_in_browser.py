"""The comparison page in a real browser: nothing is fetched, the console stays empty, filters, slider and table work."""

import csv
import io
import json

import pytest
from headless_browser import CLICK, COUNT, LINES, WAIT, needs_browser

from sparsefront.results.comparable import split_comparable

pytestmark = needs_browser
SLIDE = (
    "{{ const slider = document.querySelector('#budget input'); slider.value = {}; "
    "slider.dispatchEvent(new Event('input')); }}"
)
BEST = (
    "Math.max(...[...now.view.points, ...now.view.dense]"
    ".filter((point) => point.speedup >= now.view.budget - 1e-9).map((point) => point.pick))"
)
WINNER = "document.querySelector('[data-winner]').textContent"


def test_every_candidate_is_a_line(shown, mixed):
    results = mixed(200)
    page = shown(results)
    (group,) = split_comparable(results)
    assert page.evaluate(LINES) == len(group.points) == 100
    assert page.evaluate("spotsOf.get(document.getElementById('chart-speed')).length") == len(group.points) + 2
    assert page.evaluate("document.querySelector('#shown').textContent") == "100 of 100 points, 200 of 200 runs"
    assert (
        page.evaluate(COUNT.format("svg.chart .mark")) >= 3 and page.evaluate(COUNT.format("svg.chart .dominated")) == 3
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "fits a laptop's screen"


def test_script_finds_pythons_front(shown, mixed):
    results = mixed(200)
    page = shown(results)
    (group,) = split_comparable(results)
    front = page.evaluate("now.view.front.map((point) => [point.speedup, point.quality])")
    assert front == [pytest.approx(point) for point in group.front()]


def test_filters_stay_in_the_address(shown, mixed):
    page = shown(mixed(200))
    page.evaluate(CLICK.format('[data-field="pattern"] [data-value="tile_wise"]'))
    page.evaluate(CLICK.format('[data-field="seed"] [data-value="1"]'))
    chosen = page.evaluate(LINES)
    assert 0 < chosen < 100
    assert page.evaluate("now.view.points.every((point) => point.pattern === 'tile_wise' && point.runs.length === 1)")
    headline = "document.querySelector('section:not([hidden]) .headline').textContent"
    assert page.evaluate(headline).startswith(f"Of the {chosen} points shown, ")
    page.evaluate(WAIT)
    address = page.evaluate("location.hash")
    assert address == "#pattern=tile_wise&seed=1&section=run-0"
    again = shown(mixed(200), address)
    assert again.evaluate(LINES) == chosen
    assert again.evaluate(COUNT.format('#filters [aria-pressed="true"]')) == 2
    key = "document.querySelector('.legend [data-value=\"tile_wise\"]')"
    page.evaluate(f"{key}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")  # of the legend, as the button's
    assert page.evaluate(LINES) > chosen
    page.evaluate(CLICK.format("#reset"))
    assert not page.evaluate(headline).startswith("Of the ")


def test_slider_names_the_best(shown, mixed):
    results = mixed(200)
    page = shown(results)
    page.evaluate(SLIDE.format(0))
    assert "dense" in page.evaluate(WINNER), "with time enough the trained-on dense network is the best"
    page.evaluate(SLIDE.format(1000))
    (group,) = split_comparable(results)
    fastest = max(group.points, key=lambda point: point.x)
    assert fastest.candidate.pattern in page.evaluate(WINNER) and f"{fastest.x:.2f}×" in page.evaluate(WINNER)
    assert "at least" in page.evaluate("document.querySelector('#budget output').textContent")
    command = page.evaluate("document.querySelector('#budget code').textContent")
    assert command.startswith("python run.py model=vit_small") and f"pattern={fastest.result.choice.pattern}" in command
    for place in range(0, 1001, 50):
        page.evaluate(SLIDE.format(place))
        assert page.evaluate(f"now.view.winner.pick === {BEST}")
    page.evaluate(WAIT)
    assert "budget=" in page.evaluate("location.hash")


def test_point_tells_its_runs(shown, mixed):
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


def test_awkward_text_stays_text(shown, make_result):
    bad = "</script><img src=x onerror=alert(1)>"
    page = shown([make_result(run_id=bad, pattern=bad, n_of_m="<b>2:4"), make_result()])
    page.evaluate(CLICK.format("#points tbody tr"))
    assert page.evaluate(COUNT.format("img")) == 0 and page.evaluate(COUNT.format("td b")) == 0
