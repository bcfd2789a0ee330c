"""Published rows as packed records: packed alike, read like folders of runs, and what a stranger may send instead."""

import io
import json
import re
import shutil
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZipFile

import pytest

import sparsefront as sf
from experiments.harness.rows import difference
from sparsefront.__main__ import compare
from sparsefront.artifacts.bounded_files import Unreadable
from sparsefront.records import without_machine, write_record
from sparsefront.results.packed import MEMBERS, OUTCOMES, OVERRIDES, RECORD, SAMPLES, SERVING, pack, unpack
from sparsefront.results.record import Result
from sparsefront.results.run_folder import overrides_command
from sparsefront.results.store import read_results

TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")
PLAIN = ("report.html=false", "report.plot=false", "pattern=n_m", "sparsity=0.5")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """A folder of results with one run."""
    folder = tmp_path_factory.mktemp("records")
    sf.run(*TINY, *PLAIN, f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}")
    return folder / "results"


@pytest.fixture
def packed(results: Path, tmp_path: Path) -> Path:
    """The record of that run."""
    return write_record(run_folder(results), tmp_path / "records" / "study")


def run_folder(results: Path) -> Path:
    return next(results.glob("*/row.json")).parent


def only(folder: Path) -> Result:
    reading = read_results([folder])
    assert reading.problems == []
    return reading.results[0]


def test_record_reads_like_its_folder(results, packed):
    there, here = read_results([results]), read_results([packed.parents[1]])
    assert here.results == there.results and here.problems == []
    result = here.results[0]
    assert packed.name == f"{result.identity.run_id}.record.zip" and here.folder_of(result) == packed
    stored, found = there.outcomes_of(result), here.outcomes_of(result)
    assert found.keys() == stored.keys() == {"dense", "masked", "sparse"}
    assert all((found[side].values == stored[side].values).all() for side in found)
    assert read_results([packed]).results == here.results, "a file by itself, too"


def test_equal_runs_give_equal_bytes(results, packed, tmp_path):
    before = packed.stat().st_mtime_ns
    write_record(run_folder(results), packed.parent)
    assert packed.stat().st_mtime_ns == before, "a record that holds the run is left alone"
    again = tmp_path / "again"
    shutil.copytree(run_folder(results), again / "run")
    other = write_record(again / "run", tmp_path / "others")
    assert other.read_bytes() == packed.read_bytes() == pack(unpack(packed))
    repacked = write_record(packed, tmp_path / "repacked")
    assert repacked.read_bytes() == packed.read_bytes(), "records may be packed anew from records"
    assert packed.stat().st_size < 16_000


def test_record_names_no_place(packed, results):
    members = unpack(packed)
    assert set(members) == {*MEMBERS} - {SERVING}
    assert str(results.parent).encode() not in b"".join(members.values())
    assert overrides_command(packed) == (
        "python run.py debug=tiny trainer=cpu measure.device=cpu model.dim=64 model.depth=1 pattern=n_m sparsity=0.5"
    )
    recorded = ["dataset.path='/data/of me/glue'", "+model.path=/m/minilm", "hydra.run.dir=/x", "hydra/launcher=y"]
    kept = ["dataset.path=glue", "+model.path=minilm", "seed=1"]
    assert list(without_machine([*recorded, "stages=[dense]", "seed=1"])) == kept


def test_row_without_its_record(packed):
    result = only(packed)
    row = {name: "" if value is None else str(value) for name, value in result.flat().items()}
    assert difference(row, result) is None
    for name, value in (("sparse", "0.987654"), ("dense_weights_sha256", "00000000"), ("metric_name", "f1")):
        assert difference(row | {name: value}, result).startswith(f"the row states {name}={value}, its record ")


@pytest.mark.parametrize("name", ["outcomes.npz", ".hydra/overrides.yaml"])
def test_run_without_a_file(results, tmp_path, name):
    shutil.copytree(run_folder(results), tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(ValueError, match=Path(name).name):
        write_record(tmp_path / "run", tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_large_latencies_are_left_out(results, tmp_path, monkeypatch):
    monkeypatch.setattr("sparsefront.records.MOST_LATENCY_BYTES", 10)
    assert set(unpack(write_record(run_folder(results), tmp_path))) == {*MEMBERS} - {SAMPLES, SERVING}


def test_records_are_compared_and_rebuilt(results, packed, tmp_path, capsys):
    other = json.loads(unpack(packed)[RECORD])
    other["identity"] |= {"run_id": "another", "record_sha256": None}
    other["choice"]["pattern"] = "uniform"
    second = packed.with_name("another.record.zip")
    second.write_bytes(pack(unpack(packed) | {RECORD: json.dumps(other).encode()}))
    assert compare([str(packed.parents[1]), f"out={tmp_path / 'page'}"]) == 0
    said = capsys.readouterr()
    assert "left out" not in said.err and "n_m" in said.out
    assert re.search(r"sparsity 0.5, .* picked before .*: .*0.00", said.out), "their difference, from the outcomes"
    page = (tmp_path / "page" / "compare.html").read_text()
    assert packed.name in page and "pattern=n_m sparsity=0.5" in page, "where it lies, and its command"
    second.unlink()
    for name, folder in (("runs", results), ("records", packed.parent)):
        assert compare(["--rebuild", str(folder), f"store={tmp_path / name}.csv"]) == 0
    assert (tmp_path / "runs.csv").read_bytes() == (tmp_path / "records.csv").read_bytes()


def test_an_edited_record_is_left_out(packed, capsys):
    members = unpack(packed)
    text = members[RECORD].decode()
    result = Result.from_json(text)
    edited = text.replace(f'"sparse": {result.quality.sparse}', '"sparse": 0.99')
    packed.write_bytes(pack(members | {RECORD: edited.encode()}))
    reading = read_results([packed.parent])
    assert reading.results == [] and f"{packed}: run " in reading.problems[0]
    packed.write_bytes(pack(members | {OUTCOMES: members[OUTCOMES] + b" "}))
    reading = read_results([packed.parent])
    assert reading.outcomes_of(reading.results[0]) is None, "the result is shown, its outcomes say nothing"


def zip_of(*members: tuple[str, bytes], method: int = ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return content.getvalue()


def test_foreign_record_is_one_line(packed):
    members = unpack(packed)
    row, good = (RECORD, members[RECORD]), packed.read_bytes()
    bomb = zip_of((RECORD, b" " * (MEMBERS[RECORD] + 1)))
    understated = bomb.replace((MEMBERS[RECORD] + 1).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    flipped = bytearray(good)
    flipped[200] ^= 255
    entry = good.rindex(b"PK\x01\x02")
    bad = {
        "empty": (b"", "is cut off"),
        "text": (b"nothing", "is cut off"),
        "cut": (good[: len(good) // 2], "is cut off"),
        "cut at its end": (good[:-1], "is cut off"),
        "cut at its beginning": (good[100:], "is damaged"),
        "a changed byte": (bytes(flipped), "is damaged"),
        "no members": (zip_of(), f"holds no {RECORD}"),
        "another member": (zip_of(row, ("../../evil.py", b"1")), "holds ../../evil.py; there are"),
        "an absolute one": (zip_of(row, ("/etc/passwd", b"1")), "holds /etc/passwd"),
        "a control character": (zip_of(row, ("a\x1b[2J", b"1")), "holds a\\x1b[2J"),
        "many members": (zip_of(row, *((f"{n}" * 20, b"") for n in range(100))), "is no packed record"),
        "a bomb": (bomb, "bytes, more than the"),
        "one that states less": (understated, "is damaged"),
        "another method": (zip_of(row, method=ZIP_BZIP2), "is packed in a way"),
        "encrypted": (good[: entry + 8] + b"\x01" + good[entry + 9 :], "is packed in a way"),
        "a comment behind it": (good + b"x", "is cut off"),
        "no JSON": (pack(members | {RECORD: b"{"}), "not JSON"),
        "no UTF-8": (pack(members | {RECORD: b"\xff"}), "is not UTF-8"),
        "another record": (pack(members | {RECORD: b"{}"}), "not a result"),
    }
    for name, (content, message) in bad.items():
        packed.write_bytes(content)
        reading = read_results([packed.parent])
        assert reading.results == [], name
        (problem,) = reading.problems
        assert problem.startswith(f"{packed}: ") and message in problem and "\n" not in problem, (name, problem)
    with pytest.warns(UserWarning, match="Duplicate"):
        packed.write_bytes(zip_of(row, row))
    with pytest.raises(Unreadable, match="two files of one name"):
        unpack(packed)


def test_overrides_that_are_no_list(packed):
    for content in (b"", b"{", b"a: 1", b"\xff"):
        packed.write_bytes(pack(unpack(packed) | {OVERRIDES: content}))
        assert only(packed) and overrides_command(packed) is None
