"""Programs whose output nobody reads any more, or that a terminal cannot show."""

import io
import json
import logging
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from sparsefront.config.command_line import job
from sparsefront.progress import READER_GONE, bar, ending_with_its_reader, showing, unaffected_by_output
from sparsefront.results.record import record_digest
from sparsefront.results.store import write_result_json
from sparsefront.results.tables import print_run

ROOT = Path(__file__).resolve().parents[2]
COMPARE = [str(ROOT / "compare.py")]


def unread(words: list[str], folder: Path) -> subprocess.CompletedProcess:
    """A program in a folder, into a pipe whose reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *words], cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=180
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "words",
    [
        [*COMPARE, "--help"],
        [*COMPARE, "results"],
        [*COMPARE, "--rebuild", "results"],
        ["-u", *COMPARE, "--rebuild", "results"],
        ["-m", "sparsefront.cache", "check", "--cache-dir", "cache"],
        ["-m", "sparsefront.verify", "results/1", "--record-only"],
    ],
    ids=["help of compare", "compare", "rebuild", "rebuild, unbuffered", "check of the cache", "verify"],
)
def test_a_program_into_a_closed_pipe_ends_quietly(tmp_path, make_result, words):
    result = make_result()
    signed = result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})
    write_result_json(tmp_path / "results" / "1" / "row.json", signed)
    (tmp_path / "cache").mkdir()
    done = unread(words, tmp_path)
    told = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # what verify is doing
    assert (done.returncode, told) == (READER_GONE, [])


def test_another_pipe_that_breaks_is_told(capfd):
    with pytest.raises(BrokenPipeError), ending_with_its_reader():
        raise BrokenPipeError


ENCODINGS = ["ascii", "iso8859-1", "cp437"]


def without_reader() -> io.TextIOWrapper:
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", buffering=1, encoding="utf-8")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_run_on_a_terminal_of_another_encoding_shows_replacements(make_result, composed, encoding):
    composed()
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    with redirect_stdout(stream), job():
        print_run(make_result(dense_layers={"encoder": "雪 – µs"}), [Path("結果/row.json")])
    shown = stream.buffer.getvalue().decode(encoding)
    assert "  ??/row.json" in shown and "speedup" in shown and sys.stdout is not stream


@pytest.mark.parametrize("stream", [lambda: open("/dev/full", "w", buffering=1), without_reader, closed, lambda: None])
def test_output_that_cannot_be_written_fails_no_run(make_result, composed, monkeypatch, stream):
    composed()
    broken = stream()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, broken)
    with job():
        print_run(make_result(), [Path("row.json")])
        print("µ", file=sys.stderr, flush=True)
        sys.stdout.writelines(["µ"])
        console = logging.StreamHandler(sys.stdout)
        monkeypatch.setattr(console, "handleError", lambda record: pytest.fail("logging failed"))
        console.handle(logging.LogRecord("run", logging.INFO, "", 0, "µs", None, None))
        with showing(True):
            assert list(bar(range(3), description="µ")) == [0, 1, 2]
    assert sys.stdout is broken


def test_what_fails_beside_the_output_still_fails():
    with pytest.raises(BrokenPipeError), unaffected_by_output():
        raise BrokenPipeError


@pytest.mark.parametrize(
    "words",
    [
        [*COMPARE, "größe"],
        ["-m", "sparsefront", "verify", "größe/1", "--record-only"],
        [str(ROOT / "run.py"), "seed=µ"],
    ],
    ids=["compare", "verify", "run"],
)
def test_a_program_on_an_ascii_terminal_shows_replacements(tmp_path, make_result, words):
    result = make_result(dense_layers={"µ": "–"}).with_values({"model_variant": "größe"})
    signed = result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})
    write_result_json(tmp_path / "größe" / "1" / "row.json", signed)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=180,
    )
    shown = done.stdout + done.stderr
    assert b"Traceback" not in shown and shown.isascii() and (b"?" in shown or rb"\x" in shown)
