"""A run with recovery.dense_after: the pattern as it was trained, no sparsity, the dense network's speed."""

import re
import shutil

import sparsefront as sf
from sparsefront.__main__ import compare
from sparsefront.results.store import RESULT_FILE
from sparsefront.verify.__main__ import main

TINY = ("debug=tiny", "trainer=cpu", "measure.device=cpu", "model.depth=1", "report.html=false", "report.plot=false")
CHOICE = ("pattern=n_m", "sparsity=0.5", "recovery.dense_after=0.65", "control=dense_continued")


def test_run_records_its_pattern(tmp_path, capsys, monkeypatch):
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}")
    found = sf.run(*TINY, *places, *CHOICE)
    result = found.record
    choice, sparsity, quality, speed = result.choice, result.sparsity, result.quality, result.speed
    assert choice.pattern == "n_m" and choice.recovery_parameters["dense_after"] == 0.65
    assert sparsity.sparsity_target == 0.5 and sparsity.n_of_m == "2:4", "as it was trained"
    assert sparsity.sparsity_achieved == 0 and not any(sparsity.sparsity_per_layer.values())
    assert not sparsity.collapsed_layers
    assert choice.kernel_mode == "none" and quality.masked is not None
    assert (quality.sparse, quality.val_sparse) == (quality.masked, quality.val_masked), "what a sweep optimizes"
    assert speed.latency_dense_ms > 0 and speed.latency_sparse_ms is None and speed.speedup is None
    assert quality.dense_continued is not None, "the control took as many steps"
    assert all(mask.all() for mask in found.masks.values())
    assert "recovery.dense_after lifted the masks" in capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    assert compare(["results", "out=comparison"]) == 0
    said = capsys.readouterr().out
    assert "n_of_m 2:4" in said and re.search(r"^ n_m +0\.000 +0 ", said, re.M), "one line of the table"
    copy = tmp_path / "copy"
    shutil.copytree(found.folder, copy, symlinks=False)
    assert main([str(copy / RESULT_FILE), "--cache-dir", str(tmp_path / "cache")]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "accuracy: holds" in said and "sparsity: holds" in said
