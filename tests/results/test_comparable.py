"""Results that do not belong in one plot are kept apart; untimed results stay out of the plot of accuracy against time."""

import pytest

from sparsefront.results.candidates import splits_apart
from sparsefront.results.comparable import LATENCY, split_comparable


def test_another_model_data_device_batch_or_dtype_is_another_group(make_result):
    results = [
        make_result(),
        make_result(seed=4),
        make_result(model="bert"),
        make_result(dataset_task="sst2"),
        make_result(latency_device="cuda", gpu="A"),
        make_result(latency_device="cuda", gpu="B"),
        make_result(batch_size=1),
        make_result(sequence_length=128),
        make_result(dtype="fp16"),
        make_result(metric_name="f1"),
    ]
    groups = split_comparable(results)
    assert sorted(len(group.results) for group in groups) == [1] * 8 + [2]


def test_dense_is_the_median_baseline_and_part_of_the_front(make_result):
    results = [make_result(latency_dense_ms=ms, dense=0.98, run_id=str(ms)) for ms in (5.0, 6.0, 50.0)]
    (group,) = split_comparable(results, LATENCY)
    assert group.dense_point() == (6.0, 98.0)
    assert group.front() == [(3.5, 97.0), (6.0, 98.0)]
    (group,) = split_comparable(results)
    assert group.dense_point() == (1.0, 98.0), "each speedup is over its own baseline"
    assert group.front() == [(1.5, 97.0), (1.0, 98.0)]


def test_a_speedup_is_not_undone_by_another_process_dense_baseline(make_result):
    """The case that milliseconds got wrong: 1.53x in a slow process beside 1.23x in a fast one."""
    fast = make_result(run_id="fast", sparse=0.95, latency_dense_ms=9.18, latency_sparse_ms=6.0, speedup=1.53)
    slow = make_result(
        run_id="slow", granularity=64, sparse=0.95, latency_dense_ms=7.0, latency_sparse_ms=5.69, speedup=1.23
    )
    (group,) = split_comparable([fast, slow])
    assert (1.53, 95.0) in group.front() and (1.23, 95.0) not in group.front()
    (group,) = split_comparable([fast, slow], LATENCY)
    assert (5.69, 95.0) in group.front() and (6.0, 95.0) not in group.front()
    assert any("compare speedups, not milliseconds" in note for note in group.notes())


RECORDED = {
    "evaluated_samples": 1000,
    "val_evaluated_samples": 144,
    "dataset_digest": "cc",
    "modes_autotuned": ["eager", "cuda_graph"],
    "variants_autotuned": ["fused_qkv"],
    "processor": "Xeon",
    "threads": 2,
    "recovery_steps": 40,
    "recovery_samples": 320,
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"evaluated_samples": 200, "evaluate_limit": 200}, ("1000 test samples", "200 test samples (limit 200)")),
        ({"modes_autotuned": ["eager"]}, ("fastest of eager, cuda_graph;", "fastest of eager;")),
        ({"variants_autotuned": []}, ("variants fused_qkv", "variants none")),
        (
            {"recovery_steps": 80, "recovery_samples": 640},
            ("recovery of 40 steps on 320 samples", "recovery of 80 steps on 640 samples"),
        ),
        ({"recovery_steps": 0, "recovery_samples": 0}, ("recovery of 40 steps", "no recovery steps")),
        ({"recovery_steps": None}, ("recovery of 40 steps", "recovery steps not recorded")),
        ({"threads": 1}, ("Xeon, 2 threads", "Xeon, 1 thread")),
        ({"processor": "Epyc"}, ("Xeon, 2 threads", "Epyc, 2 threads")),
        ({"dataset_digest": "dd"}, ("data cc", "data dd")),
        ({"dataset_digest": None}, ("data cc", "data not recorded")),
        ({"dataset_split": "sst2-phrases-1"}, ("split rows", "split sst2-phrases-1")),
        ({"val_seen": True}, ("144 held-out samples", "144 held-out samples, maybe seen in training")),
    ],
)
def test_results_of_another_protocol_are_another_front_that_says_so(make_result, change, told):
    groups = split_comparable(
        [make_result(**RECORDED), make_result(**RECORDED | change), make_result(**RECORDED, seed=4)]
    )
    assert sorted(len(group.results) for group in groups) == [1, 2]
    titles = {len(group.results): group.title for group in groups}
    assert told[0] in titles[2] and told[1] in titles[1]
    assert split_comparable([make_result(**RECORDED)])[0].title == split_comparable([make_result()])[0].title


def test_splits_of_different_versions_are_told_apart_in_one_line(make_result):
    old, new, full = (
        make_result(dataset="glue", dataset_task="sst2", **change)
        for change in ({}, {"dataset_split": "sst2-phrases-1"}, {"dataset_parameters": {"valid_fraction": 0}})
    )
    (line,) = splits_apart([old, old, new, full])
    assert line.startswith("glue sst2: not ranked against each other")
    assert line.endswith(": 2 results of the split rows, 1 result of the split sst2-phrases-1")
    named_rows = make_result(dataset="glue", dataset_task="sst2", dataset_split="rows")
    assert splits_apart([old, named_rows, full]) == [] and len(split_comparable([old, named_rows])) == 1


STEPS_OF_64 = RECORDED | {
    "recovery_steps": 42,
    "recovery_samples": 2688,
    "recipe_parameters": {"batch_size": 64},
    "trainer_parameters": {"devices": 1, "accumulate_grad_batches": 1},
}


def test_a_smaller_batch_at_the_end_of_an_epoch_is_no_other_budget(make_result):
    """Iterative pruning stood apart from one_shot: each of its rounds begins a new epoch."""
    one_shot = make_result(**STEPS_OF_64, schedule="one_shot")
    iterative = make_result(**STEPS_OF_64 | {"recovery_samples": 2588}, schedule="iterative")
    dense = make_result(**STEPS_OF_64 | {"recovery": None, "recovery_steps": None, "recovery_samples": None})
    (group,) = split_comparable([one_shot, iterative, dense])
    assert group.notes()[0] == "differs between these runs: samples of recovery 2588, 2688"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recovery_steps": 43}, "recovery of 43 steps of 64 samples"),
        ({"recipe_parameters": {"batch_size": 62}}, "recovery of 42 steps of 62 samples"),
        (
            {
                "recipe_parameters": {"batch_size": 16},
                "trainer_parameters": {"devices": 2, "accumulate_grad_batches": 2},
            },
            "recovery of 42 steps of 16 samples × 2 batches × 2 devices",
        ),
        ({"trainer_parameters": {}}, "recovery of 42 steps on 2688 samples"),
    ],
    ids=["steps", "batch size", "devices", "devices not recorded"],
)
def test_other_steps_batches_or_devices_are_another_budget(make_result, change, told):
    first, second = split_comparable([make_result(**STEPS_OF_64), make_result(**STEPS_OF_64 | change)])
    assert {first.title.split(" · ")[-1], second.title.split(" · ")[-1]} == {
        "recovery of 42 steps of 64 samples",
        told,
    }


def test_processor_and_threads_do_not_part_times_of_a_gpu(make_result):
    gpu = RECORDED | {"latency_device": "cuda", "gpu": "H200"}
    assert len(split_comparable([make_result(**gpu), make_result(**gpu | {"threads": None, "processor": None})])) == 1


def test_times_of_images_of_another_size_stand_apart(make_result):
    small, large = make_result(**RECORDED), make_result(**RECORDED | {"timed_image_size": 224})
    titles = [group.title for group in split_comparable([small, large])]
    assert len(titles) == 2 and any("timed at 224 pixels" in title for title in titles)


def test_the_held_out_part_picks_the_front_and_the_reporting_split_is_drawn(make_result):
    lucky = make_result(run_id="lucky", speedup=2.0, val_sparse=0.90, sparse=0.99, val_dense=0.98)
    good = make_result(run_id="good", granularity=64, speedup=2.0, val_sparse=0.95, sparse=0.91, val_dense=0.98)
    (group,) = split_comparable([lucky, good])
    assert group.front() == [(2.0, 91.0), (1.0, 98.0)] and "held-out" in group.front_label
    full = {"dataset_parameters": {"valid_fraction": 0.0}}
    (group,) = split_comparable([make_result(**full), make_result(seed=4, **full)])
    assert group.front() == [], "nothing may be picked where nothing was held out"
    assert len(split_comparable([lucky, make_result(**full)])) == 2, "one was trained on more"


def test_a_checkpoint_that_saw_the_held_out_part_takes_no_choice_from_others(make_result):
    picked = make_result(**RECORDED, val_sparse=0.95, val_dense=0.94)
    seen = make_result(**RECORDED, val_sparse=0.99, val_dense=0.94, val_seen=True)
    groups = {group.offers_no_choice: group for group in split_comparable([picked, seen])}
    assert groups[False].results == (picked,) and groups[False].front() != []
    assert groups[True].front() == [] and any("(val_seen): none of them" in note for note in groups[True].notes())


def test_code_that_no_commit_holds_is_told(make_result):
    results = [make_result(commit="a" * 40 + end, seed=seed) for seed, end in enumerate(("", "-dirty"))]
    (group,) = split_comparable(results)
    assert "1 of 2 runs are of code with changes that no commit holds (commit ends in -dirty)" in group.notes()
    assert split_comparable(results[:1])[0].notes() == []


def test_runs_that_share_all_but_the_seed_are_one_point_with_their_spread(make_result):
    seeds = [make_result(seed=seed, sparse=0.9 + seed / 100, speedup=1.0 + seed) for seed in (0, 1, 2)]
    other = make_result(importance="random")
    (group,) = split_comparable([*seeds, other])
    point, alone = group.points()
    assert (point.quality, point.spread, point.x) == pytest.approx((91.0, 1.0, 2.0))
    assert len(point.candidate.results) == 3 and alone.spread is None and point.error == pytest.approx(1.0)
    assert point.x_interval == (1.4, 1.6), "the ends of all of its runs"


def test_a_seed_that_was_run_again_is_drawn_once_and_told(make_result):
    again = [make_result(run_id=str(day), time=f"2026-01-0{day}T00:00:00+00:00", speedup=float(day)) for day in (2, 1)]
    (group,) = split_comparable(again)
    assert [point.x for point in group.points()] == [2.0]
    (note,) = group.notes()
    assert note == "1 run was repeated with the same seeds: the newest of each counts, of those with the control"
