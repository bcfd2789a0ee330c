"""A sweep over a file of points: order, failures, packed records to go on from, and the time limit."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from program_server import ProgramServer
from quick_settings import QUICK

from sparsefront import points
from sparsefront.config.arguments import normalize_arguments
from sparsefront.errors import InvalidSetting
from sparsefront.points import Point, SweepSettings, _Processes, read_points, sweep_settings
from sparsefront.results.packed import RECORD, SUFFIX, pack
from sparsefront.results.store import read_results

ROOT = Path(__file__).resolve().parents[1]
PRUNED = ROOT / "experiments" / "records" / "front_imdb_tuning" / "530d1588195ae135.record.zip"
TINY = ["debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", *QUICK]
POINTS = "- [sparsity=0.75]\n- [pattern=n_m, pattern.m=5, sparsity=0.5]\n"


def sweep(programs: ProgramServer, folder: Path, *overrides: str):
    places = [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]
    return programs.run([str(ROOT / "run.py"), "-m", *TINY, *places, f"sweep.pack={folder / 'pack'}", *overrides])


def test_finished_points_are_packed_once(tmp_path, programs):
    (tmp_path / "points.yaml").write_text(POINTS)
    first = sweep(programs, tmp_path, f"sweep.points={tmp_path / 'points.yaml'}")
    assert first.returncode == 1, first.stderr
    lines = first.stdout.splitlines()
    assert lines[:3] == ["2 points", "point 0 begins: sparsity=0.75", "point 0 is finished"]
    assert lines[4].startswith("point 1 failed") and "pattern.m=5: cannot express sparsity 0.5" in lines[4]
    table = first.stdout.partition("1 failed:\n")[2]
    assert "  001: " in table and "pattern.m=5" in table and "1 point finished, 1 failed: " in table
    assert first.stderr.strip() == "1 point failed: 1" and len(list((tmp_path / "pack").iterdir())) == 1
    (tmp_path / "points.yaml").write_text("- [sparsity=0.75]\n")
    again = sweep(programs, tmp_path, f"sweep.points={tmp_path / 'points.yaml'}")
    assert again.returncode == 0 and again.stdout == f"0 points to run, 1 in {tmp_path / 'pack'}\n"
    (tmp_path / "points.yaml").write_text("- [sparsity=0.5]\n")
    short = sweep(programs, tmp_path, f"sweep.points={tmp_path / 'points.yaml'}", "sweep.seconds=1e-4")
    said = r"sweep.seconds=0.0001: is too short for one point: the fastest of 1 finished point took \d+ s\n"
    assert short.returncode == 1 and re.fullmatch(said, short.stderr)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Points that sleep for the seconds in their last override, as programs of their own."""
    (tmp_path / "points.yaml").touch()
    code = "import sys, time; time.sleep(float(sys.argv[-2].partition('=')[2]))"
    real = points.subprocess.Popen
    monkeypatch.setattr(
        points.subprocess, "Popen", lambda command, **given: real([command[0], "-c", code, *command[1:]], **given)
    )
    return tmp_path


def test_running_points_stop_at_the_limit(stand_in, monkeypatch, capsys):
    """The time is over when the second point begins, however long the first took."""
    now, tell = [0.0], points._tell
    monkeypatch.setattr(points, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))

    def tell_time(line):
        now[0] += line.startswith("point 1 begins")
        tell(line)

    monkeypatch.setattr(points, "_tell", tell_time)
    settings = SweepSettings(stand_in / "points.yaml", 1.0, 1, None)
    todo = [Point(0, (), ("seed=0",), 0), Point(1, (), ("seed=600",), 0), Point(2, (), ("seed=0",), 0)]
    with _Processes(stand_in, [], {"": 1}) as running:
        assert not any(points._work(todo, running, settings, 1.0, 0.0).values())
    assert (
        "out of time: 1 of 3 points stopped, 1 have not begun; the same command continues\n" in capsys.readouterr().out
    )


def test_unreadable_record_fails_alone(stand_in, capsys):
    (stand_in / "000").mkdir()
    (stand_in / "000" / "row.json").write_text("{}")
    settings = SweepSettings(stand_in / "points.yaml", None, 1, stand_in / "pack")
    todo = [Point(number, (), ("seed=0",), 0) for number in (0, 1)]
    with _Processes(stand_in, [], {"": 1}) as running:
        assert points._work(todo, running, settings, None, 0.0) == {"failed": [], "finished but not packed": [0]}
    said = capsys.readouterr().out
    assert "point 0 is not packed: " in said and "point 1 is finished\n" in said


def test_block_of_two_machines_stops(stand_in, monkeypatch, capsys):
    """The dense network of a block's first points is on another machine: no further point can be ranked with them."""
    study = {"plan_sha256": "a" * 64, "recovery_steps": 782, "record_sha256": None, "dense_weights_sha256": "d" * 64}
    (record,) = read_results([PRUNED]).results
    for number, digest in ((0, "d" * 64), (1, "e" * 64)):
        result = record.with_values(study | {"run_id": f"run-{number}", "dense_weights_sha256": digest})
        (stand_in / f"{number}.zip").write_bytes(pack({RECORD: result.to_json().encode()}))
    (stand_in / "000").mkdir()
    (stand_in / "000" / RECORD).touch()

    def write(_: Path, folder: Path) -> Path:
        folder.mkdir()
        return [(stand_in / f"{number}.zip").rename(folder / f"run-{number}{SUFFIX}") for number in (0, 1)][1]

    monkeypatch.setattr(points, "write_record", write)
    settings = SweepSettings(stand_in / "points.yaml", None, 1, stand_in / "pack")
    todo = [Point(number, (), ("seed=0",), 0) for number in (0, 1)]
    with (
        _Processes(stand_in, [], {"": 1}) as running,
        pytest.raises(InvalidSetting, match="2 results of 2 dense networks"),
    ):
        points._work(todo, running, settings, None, 0.0)
    assert "point 1 begins" not in capsys.readouterr().out


def test_points_share_gpus_evenly(stand_in):
    with _Processes(stand_in, [], {"0": 2, "1": 2}) as running:
        taken = [running.begin(Point(number, (), ("seed=60",), gpus)) for number, gpus in enumerate([1, 2, 1, 1, 1])]
        devices = [devices for _, devices in running.points.values()]
    assert taken == [True, True, True, False, False] and devices == [["0"], ["1", "0"], ["1"]]
    assert not running.points


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must be a list of points"),
        ("- sparsity=0.5", "point 0 must be a list such as"),
        ("- [seed=0]\n- [sparsity]", "point 1 must be a list such as"),
        ("- [seed=0]\n- [seed=0]", "points 0 and 1 are equal"),
    ],
)
def test_files_without_points_are_rejected(tmp_path, text, said):
    (tmp_path / "points.yaml").write_text(text)
    with pytest.raises(InvalidSetting, match=f"^sweep.points=.*: {said}"):
        read_points(tmp_path / "points.yaml")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"points": "missing.yaml"}, "sweep.points=missing.yaml: must be a file"),
        ({"points": __file__, "seconds": 0}, "sweep.seconds=0: must be greater than"),
        ({"points": __file__, "workers": 1.5}, "sweep.workers=1.5: must be a valid integer"),
        ({"points": __file__, "pack": __file__}, "sweep.pack=.*: must be null or a folder"),
        ({"points": __file__, "minutes": 1}, "sweep.minutes=1: unknown key; .*sweep takes points, seconds"),
    ],
)
def test_wrong_settings_are_rejected(settings, said):
    with pytest.raises(InvalidSetting, match=f"^{said}"):
        sweep_settings(settings)


def test_sweep_keys_need_a_sweep():
    with pytest.raises(InvalidSetting, match="^sweep.points=FILE: is of a sweep: add -m"):
        normalize_arguments(["sweep.points=FILE"])
    assert normalize_arguments(["-m", "seed=1", "sweep.points=FILE"])[2:] == [
        "hydra/sweeper=points",
        "hydra.sweeper.points=FILE",
    ]
