"""What the comparison page picks, as Python does, and by its filters."""

from headless_browser import CLICK, needs_browser

from sparsefront.results.comparable import split_comparable
from sparsefront.results.statistics import label_picks

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
    picked = label_picks(group.candidates)
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
