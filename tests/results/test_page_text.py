"""What the comparison page says and downloads, without a browser: its text, and its functions in Node where that is installed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sparsefront.results import page as pages
from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.comparison import headline

FOLDER = Path(pages.__file__).parent


def of_pattern(make_result, name, speedup, *, seed=0, width=0.02, sparse=0.97):
    shown = {"speedup": speedup, "speedup_low": speedup - width, "speedup_high": speedup + width, "sparse": sparse}
    shown |= {"dense_standard_error": 1e-15, "sparse_standard_error": 1e-15, "latency_device": "cuda", "gpu": "H200"}
    return make_result(run_id=f"{name}{seed}", pattern=name, seed=seed, dense=0.972, **shown)


@pytest.mark.usefixtures("one_seed_ranks")
def test_headline_without_a_winner(make_result):
    def told(*results):
        (group,) = split_comparable(results)
        return headline(group)

    fast, near, slow = (
        of_pattern(make_result, n, s) for n, s in (("n_m", 1.5), ("uniform", 1.47), ("block_wise", 1.2))
    )
    assert (
        told(fast, slow)
        == "Within 1 point of dense the fastest is n_m 128 at sparsity 0.75, finetune: 1.50× (1.48× – 1.52×)."
    )
    tie = told(fast, near, slow)
    assert "no single one is surely the fastest: n_m 128" in tie and "uniform 128" in tie and "block_wise" not in tie
    lossy = of_pattern(make_result, "tile_wise", 3.0, sparse=0.9)
    assert "n_m" in told(fast, lossy) and "tile_wise" not in told(fast, lossy)
    assert told(of_pattern(make_result, "n_m", 1.0)) == "Nothing within 1 point of dense counts as faster than dense."


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
