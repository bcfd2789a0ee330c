"""`compare.py` as a user calls it, and the two files that it writes."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from headless_browser import assert_self_contained

from sparsefront.__main__ import compare as main
from sparsefront.results.comparable import AXES
from sparsefront.results.compare_arguments import AXIS_NAMES, parse
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import write_pareto_png
from sparsefront.results.store import write_result_json

ROOT = Path(__file__).parents[2]
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def compare(monkeypatch, capsys):
    """As `compare_process`, but in this process, whose imports are done."""

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
        monkeypatch.chdir(cwd)
        capsys.readouterr()
        code = main(list(arguments))
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.fixture
def compare_process(programs):
    """compare_process(*arguments, cwd=FOLDER) -> how `compare.py` ended.

    HOME is empty and stdin closed: an account of the person who tests is not used, and a prompt would fail.
    """

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
        home = {"HOME": str(cwd), "NETRC": str(cwd / "none"), "WANDB_API_KEY": ""}
        return programs.run([str(ROOT / "compare.py"), *arguments], cwd=cwd, env=os.environ | home)

    return call


def test_results_folder_gives_table_and_page(tmp_path, make_result, compare_process):
    for number, pattern in enumerate(("tile_wise", "n_m", "n_m")):
        result = make_result(
            run_id=f"run-{number}", pattern=pattern, speedup=1.0 + number, latency_sparse_ms=4.0 - number
        )
        write_result_json(tmp_path / "results" / str(number) / "row.json", result)
    (tmp_path / "results" / "broken").mkdir()
    (tmp_path / "results" / "broken" / "row.json").write_text("{")
    done = compare_process(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: results/broken/row.json" in done.stderr
    found = re.findall(r"run-\d", done.stdout)
    assert found == ["run-2", "run-1", "run-0"], "sorted by speedup, the best first"
    assert (tmp_path / "results" / "compare" / "compare.png").read_bytes().startswith(PNG_MAGIC)
    page = (tmp_path / "results" / "compare" / "compare.html").read_text()
    assert_self_contained(page)
    assert "run-1" in page and "tile_wise" in page


def test_results_of_a_changed_plan(tmp_path, make_result, compare):
    for number in range(2):
        result = make_result(
            run_id=f"run-{number}", plan_sha256=f"{number}" * 64, time=f"2026-01-0{number + 1}T00:00:00"
        )
        write_result_json(tmp_path / "results" / str(number) / "row.json", result)
    ended = compare("results", cwd=tmp_path)
    assert "vit_small on digits: not ranked, 1 result of plan 11111111: the first run had 00000000\n" in ended.stderr
    assert ended.returncode == 0 and "run-0" in ended.stdout and "run-1" not in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no results found"),
        (("nowhere",), "nowhere: no such file or folder"),
        (
            ("color=red",),
            "no such option; there are out, title, sort, axis, rows, store, source, log, panels, project, entity",
        ),
        (("--fast",), "no such option"),
        (("axis=seconds",), "axis=seconds: is one of speedup, latency_ms"),
        (("store=a.csv",), "store=a.csv: is a file that --rebuild writes"),
        (("--rebuild", "nowhere"), "results=nowhere: no such folder"),
        (
            ("--rebuild", "notes.md"),
            "results=notes.md: is a file: name the folder whose rows.csv is made anew, or with",
        ),
        (("notes.md",), "notes.md: holds no results; take a folder of results, its rows.csv, or the row.json of a run"),
        (("--rebuild", "store="), "store=: names no file"),
        (("--rebuild", "store=."), "store=.: names no file"),
        (("--rebuild", "store=/dev/null/x.csv"), "store=/dev/null/x.csv: cannot be written: "),
        (("rows=few",), "rows=few: a number of lines above 0, or all"),
        (("rows=0",), "rows=0: a number of lines above 0, or all"),
        (("source=cloud",), "source=cloud: disk or wandb"),
        (("source=wandb",), "source=wandb needs project=NAME"),
        (("panels=wandb",), "panels=wandb needs project=NAME"),
    ],
)
def test_impossible_input_is_one_message(tmp_path, arguments, message, compare):
    (tmp_path / "notes.md").write_text("# Notes\n")
    done = compare(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr


def test_nothing_to_draw_is_an_error(tmp_path):
    for write, settings in ((write_pareto_png, {}), (write_comparison, {"title": ""})):
        with pytest.raises(ValueError):
            write([], tmp_path / "a", **settings)


def test_front_of_a_search(tmp_path):
    front = tmp_path / "search.front.txt"
    front.write_text("# front of search: 2 of 40 finished points\nresults/1\nresults/3\n")
    request = parse([str(front), "results/9"])
    assert request.paths == [Path("results/1"), Path("results/3"), Path("results/9")]
    assert request.picked_before == ["front of search: 2 of 40 finished points"]


def test_front_tells_its_number_of_points(compare, tmp_path, make_result):
    row = write_result_json(tmp_path / "1" / "row.json", make_result())
    (tmp_path / "search.front.txt").write_text(f"# front of search: 1 of 40 finished points\n{row.parent}\n")
    said = compare(str(tmp_path / "search.front.txt"), "out=out", cwd=tmp_path)
    assert "front of search: 1 of 40 finished points" in said.stdout
    assert "1 run compared; front of search: 1 of 40" in (tmp_path / "out" / "compare.html").read_text()


def test_axes_that_may_be_named():
    assert tuple(AXES) == AXIS_NAMES
