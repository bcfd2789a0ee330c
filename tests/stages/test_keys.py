"""Which stages a change makes again: all that depend on it, and no others."""

import importlib.metadata
from dataclasses import asdict
from functools import partial

import pytest
from stages_from import ALL, FROM_MEASURE, FROM_PRUNE, FROM_RECOVER, FROM_SWAP
from tiny_files import write_glue, write_imagenet

from sparsefront.artifacts import code_digest
from sparsefront.artifacts.content_digest import digest
from sparsefront.config.validate import validate
from sparsefront.stages.keys import stage_keys

CHANGES = {
    "seed=1": ALL,
    "model.dim=128": ALL,
    "dataset.shift=1": ALL,
    "recipe.lr=2e-3": ALL,
    "trainer.limit_batches=2": ALL,
    "sparsity=0.5": FROM_PRUNE,
    "granularity=64": FROM_PRUNE,
    "importance=taylor": FROM_PRUNE,
    "importance.norm=l2": FROM_PRUNE,
    "allocation=global_threshold": FROM_PRUNE,
    "schedule=gradual": FROM_PRUNE,
    "model.prune_head=true": FROM_PRUNE,
    "recipe.ignore=[attn]": FROM_PRUNE,
    "schedule=iterative": FROM_PRUNE,
    "recipe.save_epoch_weights=true": ALL,
    "recovery=lr_rewind": FROM_RECOVER,
    "recovery=distill": FROM_RECOVER,
    "recovery.epochs=1": FROM_RECOVER,
    "recovery.quantize=true": FROM_RECOVER,
    "recovery.backend=auto": FROM_RECOVER,
    "recovery.dense_after=0.5": FROM_RECOVER,
    "recipe.recovery_epochs=2": FROM_RECOVER,
    "recipe.recovery_epochs=null recipe.recovery_steps=2": FROM_RECOVER,
    "kernel=reference": FROM_SWAP,
    "precision=fp8": FROM_SWAP,
    "precision=fp8_static": FROM_SWAP,
    "precision=int8": FROM_SWAP,
    "measure.dense_low=[fp8,int8]": FROM_MEASURE,
    "measure.samples=20": FROM_MEASURE,
    "measure.batch_size=8": {"dense_quality"} | FROM_SWAP,
    "measure.batch_size=[32,8]": FROM_SWAP,  # the first, at which accuracy is measured, is as it was
    "measure.autotune_seconds=5": FROM_MEASURE,
    "measure.image_size=8": FROM_SWAP,
    "measure.dtype=bf16": {"dense_quality"} | FROM_SWAP,
    "measure.evaluate_limit=10": {"dense_quality"} | FROM_MEASURE,
    "kernel=none": FROM_SWAP,
    "trainer.progress_bar=false": set(),
    "dataset.num_workers=1": set(),
    "report.plot=false": set(),
    "report.mask_pictures=true": set(),
    "logger=csv": set(),
    "reuse=false": set(),
}


def digests(config) -> dict[str, str]:
    return {stage: digest(content) for stage, content in asdict(stage_keys(validate(config))).items()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_anew_what_depends_on_it(composed, change):
    on_cpu = ["trainer=cpu", "measure.device=cpu"]
    before, after = digests(composed(*on_cpu)), digests(composed(*on_cpu, *change.split()))
    assert {stage for stage in before if before[stage] != after[stage]} == CHANGES[change]


TEXT = ("model=bert", "model.size=tiny", "dataset=glue")
PHOTOGRAPHS = ("model=torchvision", "dataset=imagenet")


@pytest.mark.parametrize(
    ("library", "settings", "expected"),
    [
        ("torchmetrics", (), {"dense_quality"} | FROM_MEASURE),
        ("tokenizers", TEXT, ALL),
        ("tokenizers", PHOTOGRAPHS, set()),
        ("pillow", PHOTOGRAPHS, ALL),
        ("pillow", TEXT, set()),
        ("pillow", (), set()),
    ],
)
def test_another_version_of_a_library_makes_anew_what_it_computes(
    composed, tmp_path, monkeypatch, library, settings, expected
):
    write = {TEXT: partial(write_glue, task="sst2"), PHOTOGRAPHS: write_imagenet}.get(settings)
    data = [] if write is None else [f"dataset.path={write(tmp_path / 'data')}"]
    overrides = ["trainer=cpu", "measure.device=cpu", *settings, *data]
    before, installed = digests(composed(*overrides)), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == library else installed(name))
    after = digests(composed(*overrides))
    assert {stage for stage in before if before[stage] != after[stage]} == expected


def test_the_dense_network_trained_on_with_the_teacher_does_without_rounding(composed):
    overrides = ["trainer=cpu", "measure.device=cpu", "recovery=distill", "control=dense_distilled"]
    after = digests(composed(*overrides, "recovery.quantize=true", "recovery.dense_after=0.5"))
    before = digests(composed(*overrides))
    assert {stage for stage in before if before[stage] != after[stage]} == FROM_RECOVER


def test_a_search_for_a_latency_does_without_dense_in_low_precision(composed):
    before = digests(composed(*SEARCH, "allocation.latency_ms=1"))
    after = digests(composed(*SEARCH, "allocation.latency_ms=1", "measure.dense_low=[fp8]", "precision=fp8"))
    assert {stage for stage in before if before[stage] != after[stage]} == FROM_SWAP


@pytest.mark.parametrize("change", ["sparsity=0.5", "recovery=none", "importance=taylor", "kernel=none"])
def test_the_dense_pattern_is_measured_once(composed, change):
    """A sweep over sparsities and recoveries holds one dense point."""
    dense = ["pattern=dense", "trainer=cpu", "measure.device=cpu"]
    assert digests(composed(*dense))["result"] == digests(composed(*dense, change))["result"]


def test_the_content_of_a_table_of_layer_times_counts(composed, tmp_path):
    """Also where its path stays the same."""
    table = tmp_path / "table.csv"
    on_cpu = ["trainer=cpu", "measure.device=cpu"]
    experiment = validate(composed(*on_cpu))
    layers = experiment.model.prunable(experiment.model.skeleton(experiment.dataset.info))
    found = []
    for latency_us in (2, 3):
        lines = [f"{layer},0,8\n{layer},0.5,{latency_us}\n" for layer in layers]
        table.write_text("layer,sparsity,latency_us\n" + "".join(lines))
        found.append(digests(composed(*on_cpu, "allocation=latency_aware", f"allocation.table={table}")))
    assert {stage for stage in found[0] if found[0][stage] != found[1][stage]} == FROM_PRUNE


SEARCH = ["trainer=cpu", "measure.device=cpu", "pattern=mixed", "sparsity=0.95", "allocation=latency_search"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("allocation.generations=1", FROM_PRUNE),
        ("schedule=iterative", FROM_PRUNE),
        ("allocation.batches=4", {"choice_table"} | FROM_PRUNE),
        ("pattern.candidates=[n_m]", {"choice_times", "choice_table"} | FROM_PRUNE),
        ("pattern.sparsities=[0.5]", {"choice_times", "choice_table"} | FROM_PRUNE),
        ("importance=taylor", {"choice_times", "choice_table"} | FROM_PRUNE),
        ("kernel=sparse", {"choice_times", "choice_table"} | FROM_PRUNE),
        ("measure.samples=20", {"choice_times", "choice_table"} | FROM_PRUNE),
        ("seed=1", {"choice_table"} | ALL),
        ("recipe.lr=2e-3", {"choice_table"} | ALL),
        ("model.dim=128", {"choice_times", "choice_table"} | ALL),
        ("recovery=distill", FROM_RECOVER),
    ],
)
def test_a_search_measures_once_for_all_latencies(composed, change, expected):
    """What it measures depends on the kernels and the measurement; the masks depend on what it measured."""
    before = digests(composed(*SEARCH, "allocation.latency_ms=1"))
    after = digests(composed(*SEARCH, "allocation.latency_ms=1", change))
    assert {stage for stage in before if before[stage] != after[stage]} == expected
    other = digests(composed(*SEARCH, "allocation.latency_ms=2"))
    assert {stage for stage in before if before[stage] != other[stage]} == FROM_PRUNE


def test_the_content_of_a_teacher_counts(composed, tmp_path):
    """Also where its path stays the same."""
    from safetensors.torch import save_file

    from sparsefront.stages.network import build_net

    teacher = tmp_path / "teacher.safetensors"
    overrides = ["trainer=cpu", "measure.device=cpu", "recovery=distill"]
    weights = build_net(validate(composed(*overrides))).state_dict()
    found = []
    for scale in (1, 2):
        save_file({name: tensor * scale for name, tensor in weights.items()}, teacher)
        found.append(digests(composed(*overrides, f"recovery.teacher={teacher}")))
    assert {stage for stage in found[0] if found[0][stage] != found[1][stage]} == FROM_RECOVER


def test_launches_that_a_swap_timed_are_no_part_of_a_key(composed, new_process, tmp_path, monkeypatch):
    """They are what a swap finds out: the same run would else never be finished before."""
    from sparsefront_kernels.tuning.store import TunedKernel, user_file

    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "kernels"))
    on_cpu = ["trainer=cpu", "measure.device=cpu"]
    before = digests(composed(*on_cpu))
    TunedKernel("NVIDIA H200", "gathered_sm90", 1, own={"m=64": {"block_m": 128, "latency_us": 1.0}}).save()
    assert user_file("NVIDIA H200").exists()
    new_process()
    assert digests(composed(*on_cpu)) == before


def test_a_key_parses_each_source_once(composed, new_process, monkeypatch):
    """In a first process of a day, and none in later ones."""
    parse, parsed = code_digest._parsed.__wrapped__, []  # without what other tests have parsed
    monkeypatch.setattr(code_digest, "_parsed", lambda code: parsed.append(code) or parse(code))
    on_cpu = ["trainer=cpu", "measure.device=cpu"]
    points = [validate(composed(*on_cpu, f"pattern={name}")) for name in ("tile_wise", "n_m", "element_wise")]
    memo = {}
    monkeypatch.setattr(
        code_digest, "remembered", lambda key, read: memo[key] if key in memo else memo.setdefault(key, read())
    )
    new_process()
    for point in [*points, *points]:
        stage_keys(point)
    assert 0 < len(parsed) == len(set(parsed))
    new_process()
    parsed.clear()
    for point in points:
        stage_keys(point)
    assert not parsed
