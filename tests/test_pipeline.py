"""One configuration -> one result, on the embedded data with two batches an epoch.

A run's folder leads to its export, also after the project was moved, and where links cannot be made.
"""

import errno
import os
import shutil
import sys
import traceback
from itertools import pairwise
from pathlib import Path

import pytest

import sparsefront as sf
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.tile_wise import OutputStep
from sparsefront.pipeline import run_experiment
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.results.run_folder import link_checkpoint
from sparsefront.stages import prune as prune_stage

ON_CPU = ["trainer=cpu", "measure.device=cpu", "model.depth=1"]


def test_files_follow_the_umask(run, tmp_path):
    before = os.umask(0o002)
    try:
        run(
            "schedule=iterative",
            "schedule.rounds=2",
            "recovery=weight_rewind",
            "recipe.save_epoch_weights=true",
            *ON_CPU,
        )
    finally:
        os.umask(before)
    modes = {}
    for root in ("cache", "results"):
        for path in (tmp_path / root).rglob("*"):
            if not path.is_symlink():
                modes[path.relative_to(tmp_path).as_posix()] = oct(path.stat().st_mode & 0o777)
    wanted = {name: oct(0o775 if (tmp_path / name).is_dir() else 0o664) for name in modes}
    made_before = {name for name in modes if name.count("/") < 2}  # by the test itself
    assert {name: mode for name, mode in modes.items() if mode != wanted[name] and name not in made_before} == {}
    assert sum(name.endswith(".safetensors") for name in modes) >= 6


def test_masked_and_sparse_agree(full_run):
    result = full_run("pattern=block_wise", "granularity=4x64", *ON_CPU)
    assert result.quality.masked == pytest.approx(result.quality.sparse, abs=1e-3)
    assert result.sparsity.sparsity_achieved == pytest.approx(result.sparsity.sparsity_target, abs=0.01)
    assert result.speed.latency_device == "cpu" and result.speed.latency_kernel == "reference"
    assert result.speed.latency_sparse_ms > 0 and result.speed.latency_dense_ms > 0
    assert result.kernels.sparse_layer_share == 1.0
    assert result.size.weight_bytes_sparse < result.size.weight_bytes_dense


def test_no_sparse_latency_without_swap(run):
    result = run("stages=[dense,prune,recover,export,measure,report]", *ON_CPU)
    assert result.quality.masked is not None and result.quality.sparse is None
    assert result.speed.latency_sparse_ms is None and result.speed.latency_kernel is None


def test_misfitting_layers_are_listed(run):
    result = run("pattern=vector_wise", "granularity=512", *ON_CPU)
    fitting = [name for name, sparsity in result.sparsity.sparsity_per_layer.items() if sparsity > 0]
    assert fitting and all(name.endswith("fc1") for name in fitting)
    assert "512" in result.sparsity.dense_layers["blocks.0.attn.q"]
    assert result.sparsity.sparsity_achieved < 0.75
    shares = result.sparsity.dense_weight_shares
    assert set(shares) == set(result.sparsity.dense_layers) and not set(shares) & set(fitting)
    assert sum(shares.values()) == pytest.approx(1 - 4 / 12), "fc1 is 4 of 12 parts of a block"
    assert result.kernels.sparse_layer_share < 0.5


def artifacts(cache: Path, kind: str) -> list[Path]:
    return [folder for folder in (cache / kind).iterdir() if folder.is_dir()]


def test_run_leads_to_its_export(run, composed, tmp_path, capsys):
    from hydra.core.hydra_config import HydraConfig

    from sparsefront.pipeline import run_experiment

    result = run(*ON_CPU)
    (export,) = artifacts(tmp_path / "cache", "export")
    assert result.identity.checkpoint == f"export/{export.name}", "relative to the cache, which may be moved"
    link = Path(HydraConfig.get().runtime.output_dir) / "checkpoint"
    assert link.is_symlink() and link.resolve() == export.resolve()
    assert f"the network: {tmp_path / 'cache' / 'export' / export.name}" in capsys.readouterr().out
    (recovered,) = artifacts(tmp_path / "cache", "recover")
    assert (export / "model.safetensors").samefile(recovered / "weights.safetensors")

    run_experiment(composed("debug=tiny", "stages=[dense,prune,recover,export]", *ON_CPU))
    assert (Path(HydraConfig.get().runtime.output_dir) / "checkpoint").resolve() == export.resolve()
    shutil.rmtree(export)
    assert run(*ON_CPU) == result
    assert not (Path(HydraConfig.get().runtime.output_dir) / "checkpoint").exists()
    assert "the network: not stored any more" in capsys.readouterr().out
    assert run("pattern=dense", *ON_CPU).identity.checkpoint is None


def test_damaged_stage_is_made_again(run, tmp_path, monkeypatch, caplog):
    from sparsefront.artifacts import store

    first = run("sparsity=0.5", *ON_CPU)
    (dense,) = artifacts(tmp_path / "cache", "dense")
    content = (dense / "weights.safetensors").read_bytes()
    (dense / "weights.safetensors").write_bytes(content[: len(content) // 2])
    monkeypatch.setattr(store, "_sound", set())  # as in a later process
    again = run("sparsity=0.75", *ON_CPU)
    assert f"{dense}: weights.safetensors has {len(content) // 2} bytes instead of {len(content)}" in caplog.text
    assert (dense / "weights.safetensors").read_bytes() == content and again.quality.dense == first.quality.dense


def test_failed_page_leaves_no_result(full_run, monkeypatch):
    from hydra.core.hydra_config import HydraConfig

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("sparsefront.results.run_report.write_run_page", full)
        with pytest.raises(OSError, match="No space left"):
            full_run("sparsity=0.9", *ON_CPU)
    folder = Path(HydraConfig.get().runtime.output_dir)
    assert not (folder / "row.json").exists() and not list(folder.glob("*partial*"))
    assert full_run("sparsity=0.9", *ON_CPU).sparsity.sparsity_target == 0.9


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with an export and the folder of a run."""
    root = tmp_path / "project"
    (root / ".cache" / "export" / "key").mkdir(parents=True)
    (root / "results" / "run").mkdir(parents=True)
    monkeypatch.chdir(root)
    return root


def test_link_survives_a_move(project, tmp_path):
    assert link_checkpoint(Path(".cache/export/key"), Path("results/run").resolve()) == ".cache/export/key"
    shutil.move(project, tmp_path / "moved")
    (tmp_path / "moved" / ".cache" / "export" / "key" / "manifest.json").write_text("{}")
    assert (tmp_path / "moved" / "results" / "run" / "checkpoint" / "manifest.json").read_text() == "{}"


def test_removed_export_is_not_linked(project):
    told = link_checkpoint(Path(".cache/export/gone"), project / "results")
    assert told.startswith("not stored any more (.cache/export/gone)")
    assert not list((project / "results").glob("checkpoint*"))


def test_pattern_reaches_masks_by_few_modules(composed, monkeypatch):
    """`pattern`, from `run.py` to the mask: modules on the way, and all that `sf.prune` passes it to before the first mask."""
    path: list[str] = []
    passed: set[str] = set()

    def name_of(frame) -> str:
        return frame.f_globals.get("__name__", "")

    def watch(frame, event, argument):
        if event == "call" and not path and name_of(frame).startswith("sparsefront."):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), Pattern | PruningSettings) for name in names):
                passed.add(name_of(frame))

    def to_mask(*given, make=OutputStep.to_mask):
        if not path:
            path.extend(module for frame, _ in traceback.walk_stack(None) if (module := name_of(frame)))
        return make(*given)

    def prune(*given, **more):
        sys.setprofile(watch)
        try:
            return sf.prune(*given, **more)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(OutputStep, "to_mask", to_mask)
    monkeypatch.setattr(prune_stage, "prune", prune)
    run_experiment(composed("debug=tiny", "granularity=64", "stages=[dense,prune]", *ON_CPU))
    way = [module for module in path[: path.index("sparsefront.pipeline") + 1] if module.startswith("sparsefront.")]
    way = ["run", "sparsefront.__main__", *reversed(way)]
    climbs = sum(module != below for below, module in pairwise(way))
    assert len(set(way)) <= 12 and climbs <= 8, way
    assert len(passed) <= 12, sorted(passed)
