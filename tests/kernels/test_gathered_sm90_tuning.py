"""Launch parameters of the Hopper kernel: what is possible, what is worth timing, what is found again."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem, registry
from sparsefront_kernels.gathered.sm90 import (
    KERNEL,
    LAUNCHES,
    SHARED,
    SPACE,
    Sm90Launch,
    Sm90Problem,
    best_predicted,
    candidates,
    predicted_us,
)
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90
from sparsefront_kernels.gathered.sm90_schedule import ALL
from sparsefront_kernels.tuning import launches, store
from sparsefront_kernels.tuning.launches import chosen_launch

LARGE = Sm90Problem(m=4096, k=4096, n=4096, cta_tiles=32, k_blocks=1024)
SMALL = Sm90Problem(m=256, k=1024, n=1024, cta_tiles=8, k_blocks=64)


def test_every_launch_of_the_space_is_possible():
    assert len(SPACE) == len(set(SPACE)) > 20
    assert all(launch.possible for launch in SPACE)


@pytest.mark.parametrize(
    "launch",
    [
        Sm90Launch(256, 5, 4, 1),  # more shared memory than there is
        Sm90Launch(256, 3, 4, 2),  # registers for one block only
        Sm90Launch(128, 6, 4, 2),
        Sm90Launch(128, 3, 4, 1),  # fewer stages than teams of producers
        Sm90Launch(128, 3, 4, 2, 2),  # no registers left to add up with
        Sm90Launch(64, 4, 4, 2, 8),  # partial sums would not fit
        Sm90Launch(96, 4, 4, 1),
        Sm90Launch(64, 4, 0, 1),
    ],
)
def test_impossible_launches(launch):
    assert not launch.possible


def test_candidates_are_few_and_start_with_the_best_predicted():
    for problem in (LARGE, SMALL):
        chosen = candidates(problem, 132)
        assert 0 < len(chosen) < len(SPACE)
        predicted = [predicted_us(problem, launch, 132) for launch in chosen]
        assert predicted == sorted(predicted)
        assert predicted[0] == min(predicted_us(problem, launch, 132) for launch in SPACE)


def test_the_model_prefers_many_columns_for_large_products_and_few_for_small():
    assert candidates(LARGE, 132)[0].block_m == 256
    assert candidates(SMALL, 132)[0].block_m == 64


def test_orders_of_work_are_tried_where_there_are_several_columns_of_blocks():
    assert {launch.raster_swizzle for launch in candidates(LARGE, 132) if not launch.persistent} == {4, 16, 64}
    assert {
        launch.raster_swizzle for launch in candidates(Sm90Problem(64, 1024, 1024, 8, 64), 132) if not launch.persistent
    } == {64}


def test_the_persistent_kernel_is_tried_in_groups_where_there_are_many_cta_tiles():
    large = Sm90Problem(4096, 5120, 20480, 107, 107 * 40)
    whole = [launch for launch in candidates(large, 132) if launch.persistent and not launch.shares]
    assert [launch.raster_swizzle for launch in whole] == [ALL, 32]
    few = candidates(Sm90Problem(4096, 4096, 4096, 32, 32 * 32), 132)
    assert [launch.raster_swizzle for launch in few if launch.persistent and not launch.shares] == [ALL]


def test_k_blocks_are_shared_where_whole_tiles_leave_blocks_idle():
    """26 blocks of 128 columns on 132 SMs, the longest with 120 k-blocks; at many rows there is enough for all."""
    lengths = (120, 118, 103, 102, *[90] * 9, *[0] * 28)
    uneven = Sm90Problem(256, 20480, 5120, 41, sum(max(1, length) for length in lengths), lengths)
    assert candidates(uneven, 132)[0].shares and best_predicted(uneven, 132).shares
    assert not any(launch.shares for launch in candidates(replace(uneven, m=16384), 132))


def test_tunable_serves_every_layout(nothing_tuned, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    mask = (torch.rand(2, 96) < 0.5).repeat_interleave(128, 0)
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 96), mask, tile=128))
    kernel = registry.entry("gathered_sm90")
    (tunable,) = {kernel.tunable_in(layout) for layout in kernel.layouts}
    problem = Problem(m=60, k=96, n=256, dtype=torch.float16, device="cuda", layout="row_major")
    chosen = tunable.candidates(packed, problem)[-1]
    tunable.remember(packed, problem, chosen, 1.0)
    assert LAUNCHES.launch_for(Sm90Problem.of(packed, 64), torch.device("cuda")) == chosen


def test_measured_launches_are_used_for_their_shape_only(nothing_tuned):
    odd = Sm90Launch(64, 4, 16, 2)
    LAUNCHES.record(LARGE, odd, 123.456, "Some GPU")
    near = Sm90Problem(LARGE.m, LARGE.k, LARGE.n, LARGE.cta_tiles, LARGE.k_blocks + 3)
    assert chosen_launch(LAUNCHES, LARGE, "Some GPU", 132) == chosen_launch(LAUNCHES, near, "Some GPU", 132) == odd
    assert chosen_launch(LAUNCHES, SMALL, "Some GPU", 132) == candidates(SMALL, 132, slack=1.0)[0]
    assert chosen_launch(LAUNCHES, LARGE, "Another GPU", 132) == candidates(LARGE, 132, slack=1.0)[0]


def test_a_trial_counts_before_what_was_measured_until_it_ends(nothing_tuned, monkeypatch):
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 96), torch.ones(256, 96) > 0, tile=128))
    problem = Problem(m=64, k=96, n=256, dtype=torch.float16, device=torch.device("cpu"))
    measured, tried = Sm90Launch(64, 4, 16, 2), Sm90Launch(128, 6, 16, 1)
    untuned = LAUNCHES.launch(packed, problem)
    LAUNCHES.try_out(packed, problem, tried)
    assert LAUNCHES.launch(packed, problem) == tried and LAUNCHES.on_trial(packed, problem)
    assert not LAUNCHES.measured(packed, problem)
    LAUNCHES.end_trial(packed, problem)
    assert LAUNCHES.launch(packed, problem) == untuned and not LAUNCHES.on_trial(packed, problem)
    LAUNCHES.remember(packed, problem, measured, 1.0)
    LAUNCHES.try_out(packed, problem, tried)
    assert LAUNCHES.launch(packed, problem) == tried
    LAUNCHES.end_trial(packed, problem)
    assert LAUNCHES.launch(packed, problem) == measured
    LAUNCHES.end_trial(packed, problem)


def test_nearest_number_of_steps_is_taken(nothing_tuned):
    few, many = Sm90Launch(64, 4, 16, 2), Sm90Launch(128, 6, 16, 1)
    LAUNCHES.record(Sm90Problem(64, 64, 128, 1, 2), few, 1.0, "GPU")
    LAUNCHES.record(Sm90Problem(64, 64, 128, 1, 20), many, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, Sm90Problem(64, 64, 128, 1, 8), "GPU", 132) == few
    assert chosen_launch(LAUNCHES, Sm90Problem(64, 64, 128, 1, 14), "GPU", 132) == many


@pytest.mark.parametrize("m", [64, 4096])
def test_uneven_lists_have_launches_of_their_own(nothing_tuned, m):
    """With those of equal lists blocks wait for the longest list: they lost to predicted ones at few rows."""
    equal = Sm90Problem(m, 64, 512, 4, 16, (4, 4, 4, 4))
    uneven = Sm90Problem(m, 64, 512, 4, 16, (9, 4, 3, 0))
    of_equal, of_uneven = Sm90Launch(64, 4, 16, 2), Sm90Launch(128, 6, 16, 1)
    LAUNCHES.record(equal, of_equal, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, uneven, "GPU", 132) == (best_predicted(uneven, 132) if m == 64 else of_equal)
    LAUNCHES.record(uneven, of_uneven, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, uneven, "GPU", 132) == of_uneven
    assert chosen_launch(LAUNCHES, equal, "GPU", 132) == of_equal


def test_a_weight_keeps_its_launch_with_about_as_many_rows(nothing_tuned):
    """A network gets inputs of a new length: predictions for each of its products would take a tenth of a second."""
    lists = (9, 8, 8, 7, 0, 0)
    at, few_rows = (Sm90Problem(m, 1024, 768, 6, 34, lists) for m in (12288, 512))
    odd, other = Sm90Launch(128, 6, 16, 2), Sm90Launch(128, 6, 4, 1)
    LAUNCHES.record(at, odd, 1.0, "GPU")
    LAUNCHES.record(few_rows, other, 1.0, "GPU")
    for m, expected in ((6144, odd), (10240, odd), (24576, odd), (6136, None), (24584, None), (640, None)):
        problem = replace(at, m=m)
        assert chosen_launch(LAUNCHES, problem, "GPU", 132) == (expected or best_predicted(problem, 132)), m
    shorter = replace(at, m=10240, k_blocks=30, lengths=(8, 7, 7, 6, 0, 0))
    assert chosen_launch(LAUNCHES, shorter, "GPU", 132) == best_predicted(shorter, 132)
    LAUNCHES.record(replace(at, m=9008), SHARED[0], 1.0, "GPU")
    LAUNCHES.record(replace(at, m=8192), other, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, replace(at, m=9000), "GPU", 132) == other
    assert chosen_launch(LAUNCHES, replace(at, m=11000), "GPU", 132) == odd


def test_splits_are_no_candidates_of_the_best_where_tiles_are_many():
    for lists in ((40,) * 8, (60, 40, 30, 30, 20, 0, 0, 0)):
        for m in (6144, 12288):
            problem = Sm90Problem(m, 4096, 1024, len(lists), sum(lists), lists)
            every = (launch for launch in SPACE if launch.raster_swizzle in (16, 4, 64, ALL))
            best = min(predicted_us(problem, launch, 132) for launch in every)
            assert predicted_us(problem, best_predicted(problem, 132), 132) <= 1.02 * best


def test_shipped_tables_hold_possible_launches():
    for path in (store.Path(store.__file__).parent / "shipped").glob("*.json"):
        kernels = store._read(path)["kernels"]
        for entry in kernels.get(KERNEL, {"entries": {}})["entries"].values():
            parameters = {name: value for name, value in entry.items() if name != "latency_us"}
            assert Sm90Launch(**parameters).possible, (path.name, entry)


def test_launch_for_asks_the_device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert LAUNCHES.launch_for(LARGE, torch.device("cuda")).possible
