"""Programs whose output nobody reads any more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefront.progress import READER_GONE, ending_with_its_reader
from sparsefront.results.record import record_digest
from sparsefront.results.store import write_result_json

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
