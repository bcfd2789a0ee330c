"""`python -m sparsefront.cache`: sizes, damage, and removal of what is asked for and nothing else."""

import io
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from other_users import said_without_privileges
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts import store
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.cache.__main__ import main
from sparsefront.cache.inventory import (
    bytes_by_stage,
    disk_bytes,
    freed_bytes,
    read_inventory,
    read_results,
    remember_results,
)

SIZE = 100_000  # of the files of each stage in `filled`


def present(paths) -> set[str]:
    return {name for name, path in paths.items() if path.exists()}


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()]


def test_what_another_user_keeps_is_told_and_then_nothing_counts_as_unused(filled):
    cache, paths = filled
    closed = paths["first_recover"]
    closed.chmod(0)

    def shows() -> str:
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(said):
            for command in (["show"], ["check"], ["remove", "--unused", "--yes"]):
                code = main([*command, "--cache-dir", str(cache.root), "--results-dir", str(cache.results)])
                print(f"{command[0]} ended with {code}")
        return said.getvalue()

    try:
        said = said_without_privileges(shows)
    finally:
        closed.chmod(0o755)
    assert said.count(f"{closed}: cannot be read, since it belongs to ") == 4 and "Traceback" not in said
    assert "show ended with 0" in said and "0 damaged, 1 more cannot be read\ncheck ended with 1" in said
    assert "remove ended with 1" in said
    assert f"remove: what is used is not certain: {closed}: cannot be read" in said
    assert present(paths) == set(paths)


def test_a_result_of_another_user_makes_it_uncertain_what_is_used(filled):
    cache, _ = filled
    closed = next(path for path in cache.results.iterdir() if path.is_dir())
    closed.chmod(0)
    try:
        said = said_without_privileges(lambda: "\n".join(read_results([cache.results]).problems))
    finally:
        closed.chmod(0o755)
    assert said.startswith(f"{closed}: cannot be read, since it belongs to ") and "\n" not in said


def test_sizes_count_shared_files_once(filled):
    cache, paths = filled
    inventory = read_inventory(cache.root)
    assert [item.stage for item in inventory.stored][:4] == ["dense", "recover", "recover", "recover"]
    sizes = bytes_by_stage(inventory)
    assert SIZE < sizes["dense"] < 1.1 * SIZE and sizes["export"] < 0.1 * SIZE < 3 * SIZE < sizes["recover"]
    files = [file for item in inventory.stored for file in item.files]
    assert (
        disk_bytes(files) == sum(sizes.values()) and sum(file.bytes for file in files) == disk_bytes(files) + 3 * SIZE
    )
    export, recover = (inventory.by_key[paths[f"first_{stage}"].name] for stage in ("export", "recover"))
    assert freed_bytes([export]) < 0.1 * SIZE and freed_bytes([recover]) < 0.1 * SIZE
    assert SIZE < freed_bytes([export, recover]) < 1.1 * SIZE


def test_show_tells_stages_runs_and_what_no_result_uses(filled, capsys):
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


def test_removal_is_shown_before_it_is_done(filled, capsys):
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


@pytest.mark.parametrize("named", ["folder", "name", "run_id"])
def test_a_run_goes_with_what_it_alone_used(filled, named):
    cache, paths = filled
    before = present(paths)
    names = {"folder": str(cache.results / "2026_a"), "name": "2026_a", "run_id": paths["first_measure"].name}
    assert cache.command("remove", "--run", names[named], "--yes") == 0
    assert before - present(paths) == {f"first_{stage}" for stage in ("recover", "export", "measure", "result")}
    assert (cache.results / "2026_a" / "row.json").exists(), "results are never touched"


def test_age_counts_from_the_last_use(filled):
    cache, paths = filled
    for path in paths.values():
        cache.age(path, 40)
    cache.open()
    cache.make("dense", {"seed": 0})  # a run that finds it
    cache.close()
    before = present(paths)
    assert cache.command("remove", "--older-than", "30d", "--stage", "export", "--stage", "dense", "--yes") == 0
    assert before - present(paths) == {f"{name}_export" for name in ("first", "second", "alone")}
    assert cache.command("remove", "--older-than", "30d", "--unused", "--yes") == 0
    assert paths["first_recover"].exists(), "still of a result, though the export between is gone"
    assert not paths["alone_recover"].exists()


def test_what_killed_trainings_left_goes_only_where_it_is_named(filled):
    cache, paths = filled
    unfinished = cache.root / "recover" / "0123.unfinished"
    unfinished.mkdir()
    (unfinished / "epoch.ckpt").write_bytes(bytes(SIZE))
    assert cache.command("remove", "--older-than", "0h", "--yes") == 0
    assert unfinished.exists() and not present(paths)
    assert cache.command("remove", "--unfinished", "--older-than", "1d", "--yes") == 0
    assert unfinished.exists()
    assert cache.command("remove", "--unfinished", "--yes") == 0
    assert not unfinished.exists()


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
        (store.unfinished("recover", {}) / "epochs").mkdir(parents=True)
        (root / "ready").touch()
        time.sleep(600)
"""


def test_what_a_running_process_uses_or_makes_is_kept(filled, capsys):
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
def test_what_cannot_be_meant_is_one_line(filled, capsys, arguments, message):
    cache, paths = filled
    assert cache.command(*arguments) == 1
    assert message in capsys.readouterr().err and present(paths) == paths.keys()


def test_help_and_a_cache_that_is_not_there(tmp_path):
    def call(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "sparsefront.cache", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=os.environ)

    assert "remove --unused --yes" in call("--help").stdout
    assert "--yes removes it" in call("remove", "--help").stdout
    missing = call()
    assert missing.returncode == 1 and missing.stderr.startswith("--cache-dir .cache/sparsefront: no such folder")


def test_a_stage_that_was_made_again_while_it_was_read(filled, capsys):
    cache, paths = filled
    cache.open()
    reader = cache.store.find("dense", {"seed": 0})
    again = ArtifactStore(cache.root, reuse=False, runnable=("dense",))
    newer = get_or_make(again, "dense", {"seed": 0}, lambda folder: (folder / "weights").write_bytes(bytes(10))).path
    assert newer != paths["dense"] == reader.path
    inventory = read_inventory(cache.root)
    assert inventory.by_key[paths["dense"].name].path == newer
    cache.close()
    assert cache.command("remove", "--run", "2026_a", "--yes") == 0
    assert newer.exists() and paths["dense"].exists(), "both belong to the other result as well"
    del again
    assert cache.command("remove", "--older-than", "0h", "--stage", "dense", "--yes") == 0
    assert not newer.exists() and not paths["dense"].exists()


def test_a_removal_that_was_killed_half_way_is_finished_by_the_next(filled, capsys, monkeypatch):
    cache, paths = filled
    cache.open()
    reader = cache.store.find("dense", {"seed": 0})
    again = ArtifactStore(cache.root, reuse=False, runnable=("dense",))
    get_or_make(again, "dense", {"seed": 0}, lambda folder: (folder / "weights").write_bytes(bytes(10)))
    del again, reader
    cache.close()
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda path: None)
        assert cache.command("remove", "--older-than", "0h", "--stage", "dense", "--yes") == 0
    assert list(cache.root.glob("dense/*.again-1.removed-*")) and not paths["dense"].exists()
    assert read_inventory(cache.root).half_written
    for command in (("show",), ("check",), ("remove", "--older-than", "0h", "--yes")):
        assert cache.command(*command) == 0
    assert "0 damaged" in capsys.readouterr().out and not list(cache.root.rglob("*removed*"))


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
def test_a_damaged_list_of_folders_is_named_and_nothing_counts_as_unused(filled, capsys, content, why):
    cache, paths = filled
    listed = cache.root / "results_folders.txt"
    listed.mkdir() if content is None else listed.write_bytes(content)
    assert cache.command("show") == 0
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if "results_folders" in line]
    assert why in line and "2026_a" in said.out, "the folder that was named is shown"
    assert cache.command("remove", "--unused", "--yes") == 1
    assert "what is used is not certain" in capsys.readouterr().err and present(paths) == paths.keys()


def test_a_folder_with_any_name_is_remembered(filled, tmp_path, capsys):
    cache, _ = filled
    odd = tmp_path / "r\udce4sults"
    cache.results.rename(odd)
    cache.results.mkdir()
    (cache.root / "results_folders.txt").write_bytes(b"../torn")
    for _ in range(2):
        remember_results(cache.root, odd)
    assert (cache.root / "results_folders.txt").read_bytes() == b"../torn\n../r\xe4sults\n"
    assert cache.command("show") == 0
    said = capsys.readouterr()
    assert "2026_a" in said.out and "torn used this cache and is not there" in said.err


def test_a_hostile_row_is_named_and_the_other_runs_are_shown(filled, capsys):
    cache, paths = filled
    row = cache.results / "2026_a" / "row.json"
    sound = row.read_text()
    for text in ("[" * 100_000, "[]", sound.replace('"n_m"', '["n_m"]'), sound.replace("0.5", "NaN"), '"\\ud800"'):
        row.write_text(text)
        assert cache.command("show") == 0
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert line.startswith("cannot be read: ") and "2026_a/row.json: " in line and "sweep/001_b" in said.out
        assert cache.command("remove", "--unused", "--yes") == 1 and present(paths) == paths.keys()
        capsys.readouterr()
    row.write_text(sound.replace("n_m", "\\u001b[2J\\r"))
    assert cache.command("show") == 0
    assert r"\x1b[2J\r 0.5" in capsys.readouterr().out
