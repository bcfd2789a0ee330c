"""`python -m sparsefront.cache`: sizes, damage, and removal of what is asked for and nothing else."""

import re
import subprocess
import sys

import pytest
from other_users import said_without_privileges
from waiting import wait_until

from sparsefront.artifacts import store
from sparsefront.cache.inventory import read_results, remember_results

SIZE = 100_000  # of the files of each stage in `filled`


def present(paths) -> set[str]:
    return {name for name, path in paths.items() if path.exists()}


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()]


def test_result_of_another_user_is_uncertain(filled):
    cache, _ = filled
    closed = next(path for path in cache.results.iterdir() if path.is_dir())
    closed.chmod(0)
    try:
        said = said_without_privileges(lambda: "\n".join(read_results([cache.results]).problems))
    finally:
        closed.chmod(0o755)
    assert said.startswith(f"{closed}: cannot be read, since it belongs to ") and "\n" not in said


def test_show_tells_stages_and_runs(filled, capsys):
    cache, paths = filled
    (cache.root / "data").mkdir()
    (cache.root / "data" / "rows").write_bytes(bytes(SIZE))
    cache.result("2026_c", 0.5, run_id=paths["first_measure"].name)
    assert cache.command() == cache.command("show") == 0
    shown = capsys.readouterr().out
    for stage in ("dense", "recover", "export", "measure", "result", "prepared"):
        assert stage in first_column(shown)
    assert re.search(r"2026_a.* n_m 0.5 +\d+.*kB +\d+.*kB", shown) and "sweep/001_b" in shown
    assert re.search(r"used by no result: [45] stages", shown)


def test_removal_is_shown_first(filled, capsys):
    cache, paths = filled
    before = present(paths)
    assert cache.command("remove", "--unused") == 0
    shown = capsys.readouterr().out
    assert present(paths) == before
    assert "4 stages" in shown and "nothing was removed: add --yes" in shown
    assert all(paths[f"alone_{stage}"].name in shown for stage in ("recover", "export", "measure", "result"))
    assert cache.command("remove", "--unused", "--yes") == 0
    assert before - present(paths) == {f"alone_{stage}" for stage in ("recover", "export", "measure", "result")}
    assert "4 stages removed" in capsys.readouterr().out
    assert not list(cache.root.rglob("*removed*"))


def test_stages_of_earlier_runs_are_used(cache):
    """The later run found the export finished, and opened nothing that the export was made from."""
    paths = cache.point(0.5, name=None)
    cache.open()
    paths["measure again"] = cache.make("measure", {"export": paths["export"].name, "samples": 20})
    cache.close()
    cache.result("later", 0.5, run_id=paths["measure again"].name)
    assert cache.command("remove", "--unused", "--yes") == 0
    assert present(paths) == {"dense", "recover", "export", "measure again"}


@pytest.mark.parametrize("named", ["folder", "name", "run_id"])
def test_run_goes_with_what_it_used(filled, named):
    cache, paths = filled
    before = present(paths)
    names = {"folder": str(cache.results / "2026_a"), "name": "2026_a", "run_id": paths["first_measure"].name}
    assert cache.command("remove", "--run", names[named], "--yes") == 0
    assert before - present(paths) == {f"first_{stage}" for stage in ("recover", "export", "measure", "result")}
    assert (cache.results / "2026_a" / "row.json").exists(), "results are never touched"


def test_damage_is_found_named_and_removed(filled, capsys, monkeypatch):
    cache, paths = filled
    monkeypatch.setattr(store, "_sound", set())
    assert cache.command("check") == 0
    assert "0 damaged" in capsys.readouterr().out
    weights = paths["first_recover"] / "weights"
    first, *others = weights.read_bytes()
    weights.write_bytes(bytes([first ^ 1, *others]))  # another first byte, whatever the random one was
    monkeypatch.setattr(store, "_sound", set())
    assert cache.command("check") == 1
    shown = capsys.readouterr().out
    assert f"{paths['first_recover']}: weights does not hold what was stored" in shown
    assert str(paths["first_export"]) in shown and "2 damaged" in shown, "the export shares that file"
    assert cache.command("remove", "--damaged", "--yes") == 0
    assert present(paths) == paths.keys() - {"first_recover", "first_export"}


HOLDER = """
import sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
root, key = Path(sys.argv[1]), sys.argv[2]
with ArtifactStore(root, reuse=True, runnable=("dense", "recover")) as store:
    assert store.get("dense", {"seed": 0}) and store.get("recover", {}) is None
    with store.making("recover", {}):
        (store.locate_unfinished("recover", {}) / "epochs").mkdir(parents=True)
        (root / "ready").touch()
        time.sleep(600)
"""


def test_what_a_process_uses_is_kept(filled, capsys):
    cache, paths = filled
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(cache.root), ""])
    try:
        wait_until(lambda: (cache.root / "ready").exists(), holder)
        assert cache.command("remove", "--older-than", "0h", "--yes") == 0
        assert present(paths) == {"dense"}
        assert f"kept: {paths['dense']}: a running process uses it" in capsys.readouterr().out
        assert cache.command("remove", "--unfinished", "--yes") == 0
        (unfinished,) = cache.root.glob("recover/*.unfinished")
        assert f"kept: {unfinished}: a running process makes it" in capsys.readouterr().out
        assert list(cache.root.glob("recover/*.partial-*"))
    finally:
        holder.kill()
        holder.wait(600)
    assert cache.command("remove", "--older-than", "0h", "--yes") == 0
    assert not present(paths), "a killed process holds nothing"
    assert not list(cache.root.glob("recover/*.partial-*"))


def test_unused_needs_to_know_every_result(filled, capsys, tmp_path):
    cache, paths = filled
    before = present(paths)
    elsewhere = tmp_path / "elsewhere"
    cache.results.rename(elsewhere)
    cache.results.mkdir()
    assert cache.command("remove", "--unused", "--yes") == 1
    assert "there are no results at all" in capsys.readouterr().err and present(paths) == before
    remember_results(cache.root, elsewhere)  # as a run with results_dir=elsewhere does
    (elsewhere / "2026_a" / "row.json").write_text("{")
    assert cache.command("remove", "--unused", "--yes") == 1
    assert "2026_a/row.json" in capsys.readouterr().err and present(paths) == before
    (elsewhere / "2026_a" / "row.json").unlink()
    assert cache.command("remove", "--unused", "--yes") == 0
    assert present(paths) == {"dense"} | {f"second_{stage}" for stage in ("recover", "export", "measure", "result")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove"], "remove: say what: --unused, --older-than, --run, --damaged or --unfinished"),
        (["remove", "--older-than", "30"], "--older-than 30: is written as a number with h, d or w"),
        (["remove", "--run", "nobody"], "--run nobody: no such run among 2 results"),
        (
            ["remove", "--unused", "--stage", "dens"],
            "--stage dens: is not in the cache; there are dense, dense_quality",
        ),
        (["remove", "--unfinished", "--unused"], "--unfinished: goes with --older-than and --stage alone"),
        (["show", "--results-dir", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_meant(filled, capsys, arguments, message):
    cache, paths = filled
    assert cache.command(*arguments) == 1
    assert message in capsys.readouterr().err and present(paths) == paths.keys()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "results_folders.txt, line 1: is no path of a folder"),
        (b"../runs\n../r\x00uns\n", "results_folders.txt, line 2: is no path of a folder"),
        (b"../runs\n../r\xfens\n", "results_folders.txt, line 2: is no path of a folder"),
        (b"../runs\n" + 5000 * b"a", "results_folders.txt, line 2: is no path of a folder ('aaaa"),
        (b"../runs\n\n../runs\n", "results_folders.txt, line 2: is no path of a folder ('')"),
        (b"", "results_folders.txt: is empty"),
        (None, "results_folders.txt: is a folder, not a file"),
    ],
)
def test_damaged_list_of_folders(filled, capsys, content, why):
    cache, paths = filled
    listed = cache.root / "results_folders.txt"
    listed.mkdir() if content is None else listed.write_bytes(content)
    assert cache.command("show") == 0
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if "results_folders" in line]
    assert why in line and "2026_a" in said.out, "the folder that was named is shown"
    assert cache.command("remove", "--unused", "--yes") == 1
    assert "what is used is not certain" in capsys.readouterr().err and present(paths) == paths.keys()
