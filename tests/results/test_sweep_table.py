"""What closes a sweep: its points, counted, and why some have no result."""

import errno
import os
from pathlib import Path

import pytest

from sparsefront.results.run_folder import record_failure
from sparsefront.results.store import write_result_json
from sparsefront.results.tables import print_sweep


def begin(point: Path) -> Path:
    """What Hydra makes first."""
    (point / ".hydra").mkdir(parents=True)
    (point / ".hydra" / "overrides.yaml").write_text("- sparsity=0.5\n")
    return point


def test_leftovers_of_a_full_disk(tmp_path, capsys):
    torn, bare = begin(tmp_path / "001_n_m_0.5"), tmp_path / "002_n_m_0.75"
    (torn / "failure.json").write_text('{"error": "OSErr')
    bare.mkdir()
    record_failure(bare, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    (tmp_path / "003_n_m_0.9").mkdir()
    (tmp_path / "003_n_m_0.9" / "row.json").write_text('{"identity": ')
    print_sweep(tmp_path)
    shown = capsys.readouterr().out
    assert "0 points finished, 2 failed" in shown
    assert "001_n_m_0.5: sparsity=0.5" in shown and "cannot be read" in shown
    assert "No space left on device" in shown and "not recorded" in shown and "003_n_m_0.9" in shown


@pytest.mark.parametrize("content", ["[]", "3", '{"error": "OSError"}'])
def test_unexplained_failure_leaves_the_table(tmp_path, capsys, make_result, content):
    (begin(tmp_path / "001_n_m_0.5") / "failure.json").write_text(content)
    write_result_json(tmp_path / "002_n_m_0.75" / "row.json", make_result(pattern="n_m"))
    print_sweep(tmp_path)
    shown = capsys.readouterr().out
    assert "1 point finished, 1 failed" in shown and "failure.json cannot be read" in shown and "n_m" in shown


@pytest.mark.parametrize("columns", ["80", "130", "400"])
def test_no_terminal_loses_digits(tmp_path, capsys, monkeypatch, make_result, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    errors = dict.fromkeys(("dense_standard_error", "masked_standard_error", "sparse_standard_error"), 0.0321)
    tile_wise = {"pattern": "tile_wise", "importance": "taylor", "allocation": "erk", "sparse": 0.8125}
    n_m = {"pattern": "n_m", "granularity": None, "recovery": "distill", "schedule": "iterative", "sparse": 0.7777}
    for number, changes in enumerate((tile_wise, n_m)):
        write_result_json(
            tmp_path / f"00{number}" / "row.json", make_result(run_id=f"run-{number}", **errors, **changes)
        )
    print_sweep(tmp_path)
    shown = capsys.readouterr().out
    assert all(whole in shown for whole in ("tile_wise", "distill", "81.25", "77.77", "98.00"))
    assert columns != "400" or "81.25 ± 3.21 %" in shown


def test_seeds_have_a_deviation(tmp_path, capsys, make_result):
    for seed, sparse in enumerate((0.96, 0.97, 0.98)):
        result = make_result(run_id=f"run-{seed}", seed=seed, sparse=sparse)
        write_result_json(tmp_path / f"00{seed}" / "row.json", result)
    print_sweep(tmp_path)
    assert "97.00 ± 1.00" in capsys.readouterr().out
