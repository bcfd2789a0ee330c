"""Results that do not belong in one plot are kept apart; untimed results stay out of the plot of accuracy against time.

What still differs between results of one plot is reported, and what agrees is not.

Points lost are against the dense network that was trained as long, where there is one; tables show both.
"""

import io

import pytest
from rich.console import Console

from sparsefront.results.candidates import baseline_quality, points_lost, splits_apart
from sparsefront.results.comparable import LATENCY, differences, split_comparable
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import write_pareto_png
from sparsefront.results.store import rank, rank_of_line
from sparsefront.results.tables import results_table, run_table


def test_other_model_data_device_or_dtype(make_result):
    cases = [{}, {"seed": 4}, {"model": "bert"}, {"dataset_task": "sst2"}, {"latency_device": "cuda", "gpu": "A"}]
    cases += [{"latency_device": "cuda", "gpu": "B"}, {"batch_size": 1}, {"sequence_length": 128}, {"dtype": "fp16"}]
    groups = split_comparable([make_result(**changes) for changes in (*cases, {"metric_name": "f1"})])
    assert sorted(len(group.results) for group in groups) == [1] * 8 + [2]


def test_dense_is_the_median_baseline(make_result):
    results = [make_result(latency_dense_ms=ms, dense=0.98, run_id=str(ms)) for ms in (5.0, 6.0, 50.0)]
    (group,) = split_comparable(results, LATENCY)
    assert group.dense_point() == (6.0, 98.0)
    assert group.front() == [(3.5, 97.0), (6.0, 98.0)]
    (group,) = split_comparable(results)
    assert group.dense_point() == (1.0, 98.0), "each speedup is over its own baseline"
    assert group.front() == [(1.5, 97.0), (1.0, 98.0)]


RECORDED = {"evaluated_samples": 1000, "val_evaluated_samples": 144, "dataset_digest": "cc", "processor": "Xeon"}
RECORDED |= {"modes_autotuned": ["eager", "cuda_graph"], "variants_autotuned": ["fused_qkv"], "threads": 2}
RECORDED |= {"recovery_steps": 40, "recovery_samples": 320}
LIMITED = {"evaluated_samples": 200, "evaluate_limit": 200}
TWICE = {"recovery_steps": 80, "recovery_samples": 640}


@pytest.mark.parametrize(
    ("change", "first", "other"),
    [
        (LIMITED, "1000 test samples", "200 test samples (limit 200)"),
        ({"modes_autotuned": ["eager"]}, "fastest of eager, cuda_graph;", "fastest of eager;"),
        ({"variants_autotuned": []}, "variants fused_qkv", "variants none"),
        (TWICE, "recovery of 40 steps on 320 samples", "recovery of 80 steps on 640 samples"),
        ({"recovery_steps": 0, "recovery_samples": 0}, "recovery of 40 steps", "no recovery steps"),
        ({"recovery_steps": None}, "recovery of 40 steps", "recovery steps not recorded"),
        ({"threads": 1}, "Xeon, 2 threads", "Xeon, 1 thread"),
        ({"processor": "Epyc"}, "Xeon, 2 threads", "Epyc, 2 threads"),
        ({"dataset_digest": "dd"}, "data cc", "data dd"),
        ({"dataset_digest": None}, "data cc", "data not recorded"),
        ({"dataset_split": "sst2-phrases-1"}, "split rows", "split sst2-phrases-1"),
        ({"val_seen": True}, "144 held-out samples", "144 held-out samples, maybe seen in training"),
    ],
)
def test_another_protocol_is_another_front(make_result, change, first, other):
    runs = [make_result(**RECORDED), make_result(**RECORDED | change), make_result(**RECORDED, seed=4)]
    titles = {len(group.results): group.title for group in split_comparable(runs)}
    assert titles.keys() == {1, 2} and first in titles[2] and other in titles[1]
    assert split_comparable(runs[:1])[0].title == split_comparable([make_result()])[0].title


def test_splits_of_different_versions(make_result):
    old, new, full = (
        make_result(dataset="glue", dataset_task="sst2", **change)
        for change in ({}, {"dataset_split": "sst2-phrases-1"}, {"dataset_parameters": {"valid_fraction": 0}})
    )
    (line,) = splits_apart([old, old, new, full])
    assert line.startswith("glue sst2: not ranked against each other")
    assert line.endswith(": 2 results of the split rows, 1 result of the split sst2-phrases-1")
    named_rows = make_result(dataset="glue", dataset_task="sst2", dataset_split="rows")
    assert splits_apart([old, named_rows, full]) == [] and len(split_comparable([old, named_rows])) == 1


STEPS_OF_64 = RECORDED | {"recovery_steps": 42, "recovery_samples": 2688, "recipe_parameters": {"batch_size": 64}}
STEPS_OF_64 |= {"trainer_parameters": {"devices": 1, "accumulate_grad_batches": 1}}
TWO_DEVICES = {"trainer_parameters": {"devices": 2, "accumulate_grad_batches": 2}}


@pytest.mark.parametrize(
    ("change", "budget"),
    [
        ({"recovery_steps": 43}, "43 steps of 64 samples"),
        ({"recipe_parameters": {"batch_size": 62}}, "42 steps of 62 samples"),
        ({"recipe_parameters": {"batch_size": 16}} | TWO_DEVICES, "42 steps of 16 samples × 2 batches × 2 devices"),
        ({"trainer_parameters": {}}, "42 steps on 2688 samples"),
    ],
    ids=["steps", "batch size", "devices", "devices not recorded"],
)
def test_other_steps_batches_or_devices(make_result, change, budget):
    groups = split_comparable([make_result(**STEPS_OF_64), make_result(**STEPS_OF_64 | change)])
    told = {group.title.split(" · ")[-1] for group in groups}
    assert told == {"recovery of 42 steps of 64 samples", f"recovery of {budget}"}


def test_held_out_part_picks_the_front(make_result):
    lucky = make_result(run_id="lucky", speedup=2.0, val_sparse=0.90, sparse=0.99, val_dense=0.98)
    good = make_result(run_id="good", granularity=64, speedup=2.0, val_sparse=0.95, sparse=0.91, val_dense=0.98)
    (group,) = split_comparable([lucky, good])
    assert group.front() == [(2.0, 91.0), (1.0, 98.0)] and "held-out" in group.front_label
    full = {"dataset_parameters": {"valid_fraction": 0.0}}
    (group,) = split_comparable([make_result(**full), make_result(seed=4, **full)])
    assert group.front() == [], "nothing may be picked where nothing was held out"
    assert len(split_comparable([lucky, make_result(**full)])) == 2, "one was trained on more"


def test_uncommitted_code_is_told(make_result):
    results = [make_result(commit="a" * 40 + end, seed=seed) for seed, end in enumerate(("", "-dirty"))]
    (group,) = split_comparable(results)
    assert "1 of 2 runs are of code with changes that no commit holds (commit ends in -dirty)" in group.notes
    assert split_comparable(results[:1])[0].notes == []


def test_runs_of_several_seeds(make_result):
    seeds = [make_result(seed=seed, sparse=0.9 + seed / 100, speedup=1.0 + seed) for seed in (0, 1, 2)]
    other = make_result(importance="random")
    (group,) = split_comparable([*seeds, other])
    point, alone = group.points
    assert (point.quality, point.spread, point.x) == pytest.approx((91.0, 1.0, 2.0))
    assert len(point.candidate.results) == 3 and alone.spread is None and point.error == pytest.approx(1.0)
    assert point.x_interval == (1.4, 1.6), "the ends of all of its runs"


HASH, OTHER, COMMIT = "a" * 64, "b" * 64, "0123456789" * 4
ALIKE = {"repeats": 3, "samples_per_repeat": 30, "recipe": "vit_small_digits", "dense_weights_sha256": HASH}
ALIKE |= {"recipe_parameters": {"lr": 0.001, "epochs": 10}, "commit": COMMIT}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"repeats": 5}, "repeats 3, 5"),
        ({"samples_per_repeat": 100}, "samples per repeat 30, 100"),
        ({"autotune_seconds": 60.0}, "seconds of search unknown, 60.0"),
        ({"recipe": "default"}, "recipe vit_small_digits, default"),
        ({"recipe_parameters": {"lr": 0.003, "epochs": 10}}, "recipe.lr 0.001, 0.003"),
        ({"trainer_parameters": {"limit_batches": 2}}, "trainer.limit_batches unknown, 2"),
        ({"dense_weights_sha256": OTHER}, "2 different dense networks"),
        ({"dense_weights_sha256": OTHER, "seed": 4}, "2 different dense networks (seeds 3, 4)"),
        ({"commit": "f" * 40 + "-dirty"}, "commit 012345678, fffffffff-dirty"),
        ({"torch_version": "2.14.0"}, "torch 2.15.0, 2.14.0"),
        ({"driver": "580.65"}, "driver unknown, 580.65"),
    ],
)
def test_each_difference_is_one_line(make_result, change, difference):
    lines = differences([make_result(**ALIKE), make_result(**ALIKE | change)])
    assert lines[-1] == f"differs between these runs: {difference}"


def test_missing_settings_are_no_difference(make_result):
    """Its record holds no recipe parameters of what comes after pruning; of a checkpoint as it is, `epochs` alone."""
    dense = make_result(
        **ALIKE | {"pattern": "dense", "masked": None, "sparse": None, "recipe_parameters": {"epochs": 10}}
    )
    assert differences([make_result(**ALIKE), dense]) == []
    other = make_result(**ALIKE | {"recipe_parameters": {"lr": 0.003, "epochs": 10}})
    assert differences([make_result(**ALIKE), dense, other]) == ["differs between these runs: recipe.lr 0.001, 0.003"]


def test_equal_weights_of_different_seeds(make_result):
    """One run may pose as several seeds; so may one that draws nothing."""
    pruned = ALIKE | {"pattern": "n_m", "sparsity_target": 0.5}
    runs = [make_result(**pruned, weights_sha256=HASH, seed=3, recovery_seed=seed) for seed in (3, 4, 5)]
    told = "equal weights under different seeds (n_m 0.5: 3, 3/4, 3/5): one network, not 3"
    assert told in differences(runs)
    others = [make_result(**pruned, weights_sha256=f"{seed}" * 64, seed=3, recovery_seed=seed) for seed in (3, 4)]
    assert not any("equal weights" in line for line in differences(others))
    assert not any("equal weights" in line for line in differences([runs[0], runs[0]]))


CONTINUED = {"dense": 0.95, "dense_continued": 0.98, "masked": 0.96, "sparse": 0.955}


def text(table) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        (CONTINUED, 2.5),
        (CONTINUED | {"dense_continued": None}, -0.5),
        (CONTINUED | {"sparse": None}, 2.0),
        (CONTINUED | {"dense_distilled": 0.985}, 3.0),
        ({"sparse": None, "masked": None}, None),
        ({"dense": None}, None),
    ],
)
def test_points_lost_against_the_control(make_result, changes, lost):
    assert points_lost(make_result(**changes)) == (None if lost is None else pytest.approx(lost))


def test_tables_show_both_baselines(make_result):
    one = text(run_table(make_result(**CONTINUED, recovery_steps=40, recovery_epochs=2.0, recovery_samples=320)))
    shown = (
        "dense, trained on",
        "95.00 %",
        "98.00 %",
        "2.50, against dense, trained on",
        "40 steps, 2 epochs, 320 samples",
    )
    assert [part for part in shown if part not in one] == []
    alone = text(run_table(make_result()))
    assert "trained on" not in alone and "1.00, against dense" in alone
    held_out = {"val_dense": 0.95, "val_sparse": 0.9, "val_evaluated_samples": 144, "evaluated_samples": 359}
    assert "sparse 90.00 % of 144 samples, for choices" in text(run_table(make_result(**held_out)))
    seen = text(run_table(make_result(**held_out, val_seen=True)))
    assert "144 samples, for no choice: the checkpoint may have seen them" in seen
    several = text(results_table([make_result(**CONTINUED), make_result(dense=0.95)]))
    assert [part for part in ("95.00 %", "98.00 %", "2.50", "-2.00") if part not in several] == []


def test_better_dense_network_bounds_front(make_result, tmp_path):
    results = [make_result(**CONTINUED), make_result(**CONTINUED | {"speedup": 0.9, "sparse": 0.97, "granularity": 64})]
    (group,) = split_comparable(results)
    assert group.dense_point() == (1.0, 95.0) and group.dense_point("dense_continued") == (1.0, 98.0)
    assert group.front() == [(1.5, 95.5), (1.0, 98.0)]
    page = write_comparison(results, tmp_path / "page.html", title="both").read_text()
    assert '{"name":"dense_continued","constant":0.98}' in page
    assert write_pareto_png(results, tmp_path / "plot.png").stat().st_size > 0
    assert split_comparable([make_result()])[0].dense_point("dense_continued") is None


def test_control_with_teacher_comes_first(make_result, tmp_path):
    both = make_result(**CONTINUED, dense_distilled=0.985)
    assert baseline_quality(both) == 0.985
    assert "3.00, against dense, trained on with the teacher" in text(run_table(both))
    (group,) = split_comparable([both, make_result(**CONTINUED, seed=1), make_result(seed=2)])
    (note,) = (note for note in group.notes if note.startswith("points lost"))
    assert note == (
        "points lost are against dense trained on with the teacher in 1 run, and against dense trained on in 1 run, and "
        "against dense as it was before pruning in the 1 without control=dense_continued"
    )
    assert group.dense_point("dense_distilled") == (1.0, pytest.approx(98.5))
    assert '"dense_distilled"' in write_comparison([both], tmp_path / "page.html", title="one").read_text()


def test_control_with_the_teacher_counts(make_result):
    continued, distilled = make_result(dense_continued=0.9), make_result(dense_distilled=0.9)
    assert rank(distilled) > rank(continued) > rank(make_result())
    for result in (continued, distilled):
        line = {name: "" if value is None else str(value) for name, value in result.flat().items()}
        assert rank_of_line(line)[0] == rank(result)[0]


def test_unpadded_rows_and_apart_ratios(make_result):
    unpadded = {"dense_variant": "eager+unpadded", "variants_autotuned": ["unpadded"]}
    runs = [make_result(seed=seed, **unpadded, latency_sparse_ms=3.0) for seed in range(5)]
    padded, other = split_comparable([*runs, make_result(dense_variant="eager", variants_autotuned=[])])[::-1]
    assert other.title.endswith("fp32 · unpadded") and "unpadded" not in padded.title
    assert other.columns[1]["inference"] == "unpadded" and "inference" not in padded.columns[1]
    (note,) = (line for line in other.notes if "median" in line)
    assert note.endswith(f"shown give {', '.join(['1.75× for tile_wise 0.75'] * 3)}, and others for 2 rows")
    assert not any("median" in line for line in padded.notes)
