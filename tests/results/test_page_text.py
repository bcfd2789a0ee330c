"""What the comparison page says and downloads, without a browser: its text, and its functions in Node where that is installed."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from page_checks import assert_self_contained

from sparsefront.__main__ import compare as main
from sparsefront.results import page as pages
from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.comparison import headline, write_comparison
from sparsefront.results.page.run import write_run_page
from sparsefront.results.plots import pattern_color

FOLDER = Path(pages.__file__).parent
BUTTONS = {"link": "copy link", "figure": "figure as SVG", "table-csv": "table as CSV", "table-latex": "table as LaTeX"}


def of_pattern(make_result, name, speedup, *, seed=0, width=0.02, sparse=0.97):
    shown = {"speedup": speedup, "speedup_low": speedup - width, "speedup_high": speedup + width, "sparse": sparse}
    shown |= {"dense_standard_error": 1e-15, "sparse_standard_error": 1e-15, "latency_device": "cuda", "gpu": "H200"}
    return make_result(run_id=f"{name}{seed}", pattern=name, seed=seed, dense=0.972, **shown)


@pytest.mark.usefixtures("one_seed_ranks")
def test_the_headline_names_no_winner_where_intervals_overlap(make_result):
    def told(*results):
        (group,) = split_comparable(results)
        return headline(group)

    fast, near, slow = (
        of_pattern(make_result, n, s) for n, s in (("n_m", 1.5), ("uniform", 1.47), ("block_wise", 1.2))
    )
    assert (
        told(fast, slow) == "Within 1 point of dense the fastest is n_m 128 at sparsity 0.742: 1.50× (1.48× – 1.52×)."
    )
    tie = told(fast, near, slow)
    assert "no single one is surely the fastest: n_m 128" in tie and "uniform 128" in tie and "block_wise" not in tie
    assert "(1.45× – 1.52×)" in tie
    lossy = of_pattern(make_result, "tile_wise", 3.0, sparse=0.9)
    assert "n_m" in told(fast, lossy) and "tile_wise" not in told(fast, lossy)
    assert told(of_pattern(make_result, "n_m", 1.0)) == "Nothing within 1 point of dense counts as faster than dense."


def test_head_of_the_page(make_result, tmp_path):
    page = write_comparison([make_result(latency_device="cuda")], tmp_path / "a.html", title='of "a" < b').read_text()
    assert_self_contained(page)
    for name in ('name="description"', 'property="og:description"', 'property="og:title"', 'name="color-scheme"'):
        assert f"<meta {name}" in page
    assert 'content="of &#34;a&#34; &lt; b"' in page
    assert page.index('class="headline"') < page.index('id="chart-speed"') < page.index('id="filters"')
    assert page.index('id="chart-speed"') < page.index('class="sentences"')
    for name, text in BUTTONS.items():
        assert f'<button type="button" id="{name}">{text}</button>' in page and f'on("{name}", "click"' in page
    assert 'id="reset">reset<' in page and 'event.key !== "Escape"' in page
    assert page.count('tabindex="0" aria-label=') == 3
    assert "og:description" not in write_run_page(make_result(), tmp_path / "run.html", title="one").read_text()


def test_the_title_is_given_or_of_the_runs(make_result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("row.json").write_text(make_result().to_json())
    assert main(["row.json", "out=a"]) == 0 and main(["row.json", "out=b", "title=Tiles & more"]) == 0
    assert "<title>vit_small on digits: 1 run compared</title>" in Path("a/compare.html").read_text()
    assert "<title>Tiles &amp; more</title>" in Path("b/compare.html").read_text()


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_dark_mode_can_be_read():
    dark = (FOLDER / "style.css").read_text().partition("(prefers-color-scheme: dark) {")[2]
    pairs = re.findall(r"background: (#\w+); color: (#\w+)", dark)
    assert len(pairs) >= 6 and all(contrast(*pair) >= 4.5 for pair in pairs)
    assert contrast("#161616", "#ababab") >= 4.5 and contrast("#161616", "#6a6a6a") >= 3
    patterns = ("tile_wise", "block_wise", "vector_wise", "n_m", "uniform", "element_wise", "mixed")
    assert all(contrast("#161616", pattern_color(name)) >= 3 for name in patterns), "marks of the chart"


def test_a_narrow_page_keeps_accuracy_and_speed():
    table = (FOLDER / "script" / "table.js").read_text()
    kept = re.findall(r'head: "([^"]+)", (?!.*minor: true)', table)
    assert kept == ["pattern", "sparsity", "test", "speedup"]
    assert "#points .minor { display: none; }" in (FOLDER / "style.css").read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_downloads_in_node():
    def run(names, expression):
        script = "\n".join((FOLDER / "script" / f"{name}.js").read_text() for name in names)
        source = f"const DATA = {{columns: []}}, state = {{sort: null}};\n{script}\nconsole.log(JSON.stringify({expression}))"
        return json.loads(subprocess.run(["node", "-e", source], capture_output=True, text=True, check=True).stdout)

    cells = ["=1+1", "+a", "-b", "@c", "-1.5", "'=d", 'say "x", y', "n_m"]
    written = run(["download"], f"csvText([{json.dumps(cells)}, [-2, null, 3.5]])")
    assert written == "'=1+1,'+a,'-b,'@c,-1.5,''=d,\"say \"\"x\"\", y\",n_m\n-2,,3.5\n"
    assert run(["download"], r"latexText('50 % & n_m × 2 ± 1 \\ {x} – ≠')") == (
        r"50 \% \& n\_m $\times$ 2 $\pm$ 1 \textbackslash{} \{x\} -- $\neq$"
    )
    point = (
        "{label: 'n_m', sparsity: 0.5, recovery: 'none', settings: '', runs: [1], val: 96.5, quality: 97, error: 0.4,"
    )
    point += " lost: 1, latency_ms: 3.5, speedup: 1.5, unlike: [], metric: {scale: 100, unit: ' %', sign: 1}}"
    names = ["data", "text", "table", "download"]
    told = run(names[1:], f"latexOf(tableLines([{point}]))")
    assert told.startswith("\\begin{tabular}{lrllrrrrrrll}\n\\toprule\npattern & sparsity") and "\\bottomrule" in told
    assert "97.00 $\\pm$ 0.40 \\%" in told and "1.50$\\times$" in told


PERPLEXITIES = """
const metric = {scale: 1, unit: "", sign: -1}, section = {metric, picked_by: "val"};
const points = [[30, 29, 2.0], [28, 28.5, 1.5], [40, 41, 1.2]].map(([quality, val, speedup]) => {
  const point = {label: `at ${quality}`, quality, val, speedup, metric, error: null, lost: lostFrom(28, quality, metric)};
  return {...point, pick: pickOf(point, section)};
});
const names = (some) => some.map((point) => point.quality);
const told = [names(paretoFront(points, "speedup")), bestHeldOut(points).quality, names(sorted(points)),
  lostText(points[2].lost, metric), qualityText({...points[0], error: 0.25}), lostText(-0.5, {sign: 1})];
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_less_of_a_perplexity_is_better_in_node():
    names = ("data", "text", "front", "picked", "table")
    script = "\n".join((FOLDER / "script" / f"{name}.js").read_text() for name in names)
    page = "const document = {getElementById: () => ({textContent: '{\"columns\": []}'})}, state = {sort: null};"
    source = f"{page}\n{script}\n{PERPLEXITIES}\nconsole.log(JSON.stringify(told))"
    told = json.loads(subprocess.run(["node", "-e", source], capture_output=True, text=True, check=True).stdout)
    assert told == [[30, 28], 28, [28, 30, 40], "42.86 % more", "30.00 ± 0.25", "0.50 points gained"]
