"""The command on what real runs stored."""

from pathlib import Path

from sparsefront.cache.__main__ import main

ON_CPU = ("trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8")


def test_run_is_removed_and_made_again(run, tmp_path, caplog, capsys):
    first, second = (run(f"sparsity={sparsity}", "pattern=n_m", *ON_CPU) for sparsity in (0.5, 0.75))
    place = ["--cache-dir", str(tmp_path / "cache")]  # the folder of results is remembered
    assert main(["remove", "--unused", *place]) == 0
    assert "nothing in the cache meets" in capsys.readouterr().out, "every stage belongs to a result"
    exports = {row.identity.run_id: tmp_path / "cache" / row.identity.checkpoint for row in (first, second)}
    assert all(path.is_dir() for path in exports.values())
    assert main(["remove", "--run", first.identity.run_id, "--yes", *place]) == 0
    assert [path.is_dir() for path in exports.values()] == [False, True]
    assert len(list(Path(tmp_path / "cache" / "dense").glob("*/"))) == 1
    with caplog.at_level("INFO"):
        assert run("sparsity=0.75", "pattern=n_m", *ON_CPU) == second
    assert "finished before" in caplog.text and "training" not in caplog.text
    again = run("sparsity=0.5", "pattern=n_m", *ON_CPU)
    assert again.quality == first.quality and again.cost.dense_reused
    assert all(path.is_dir() for path in exports.values())
