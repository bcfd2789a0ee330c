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
from sparsefront.progress import READER_GONE, bar, exit_quietly_on_broken_pipe, ignore_output_errors, showing
from sparsefront.results.record import record_digest
from sparsefront.results.store import write_result_json
from sparsefront.results.tables import print_run

ROOT = Path(__file__).resolve().parents[2]
COMPARE = [str(ROOT / "compare.py")]


# Before a program whose words follow: standard output as it would find it.
INTO_A_CLOSED_PIPE = """
import os, runpy, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
sys.stdout.reconfigure(line_buffering={at_once})
"""
RUN_FILE = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
RUN_MODULE = "sys.argv = sys.argv[2:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


def after(prelude: str, words: list[str]) -> list[str]:
    return ["-c", prelude + (RUN_MODULE if words[0] == "-m" else RUN_FILE), *words]


def unread(words: list[str], folder: Path) -> subprocess.CompletedProcess:
    """A program in a folder, into a pipe whose reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *words], cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600
        )
    finally:
        os.close(writer)


def test_closed_pipe_ends_quietly(tmp_path, make_result, programs):
    result = make_result()
    signed = result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})
    write_result_json(tmp_path / "results" / "1" / "row.json", signed)
    (tmp_path / "cache").mkdir()
    done = unread([*COMPARE, "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (READER_GONE, ""), "a whole process, from Python's start to its end"
    for at_once, words in (
        (False, [*COMPARE, "results"]),
        (False, [*COMPARE, "--rebuild", "results"]),
        (True, [*COMPARE, "--rebuild", "results"]),
        (False, ["-m", "sparsefront.cache", "check", "--cache-dir", "cache"]),
        (True, ["-m", "sparsefront.verify", "results/1", "--record-only"]),  # ends at its first line
    ):
        done = programs.run(after(INTO_A_CLOSED_PIPE.format(at_once=at_once), words), cwd=tmp_path)
        told = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # what verify is doing
        assert (done.returncode, told) == (READER_GONE, []), words


def test_another_pipe_that_breaks_is_told(capfd):
    with pytest.raises(BrokenPipeError), exit_quietly_on_broken_pipe():
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
def test_terminal_of_another_encoding(make_result, composed, encoding):
    composed()
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    with redirect_stdout(stream), job():
        print_run(make_result(dense_layers={"encoder": "雪 – µs"}), [Path("結果/row.json")])
    shown = stream.buffer.getvalue().decode(encoding)
    assert "in ??/ row.json" in shown and "speedup" in shown and sys.stdout is not stream


@pytest.mark.parametrize("stream", [lambda: open("/dev/full", "w", buffering=1), without_reader, closed, lambda: None])
def test_unwritable_output_fails_no_run(make_result, composed, monkeypatch, stream):
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


def test_failure_beside_the_output():
    with pytest.raises(BrokenPipeError), ignore_output_errors():
        raise BrokenPipeError
