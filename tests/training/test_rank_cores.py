"""Ranks share the cores of a machine: whole cores, one socket where that suffices, and nothing is left bound."""

import os
import threading

import pytest

from sparsefront.training.rank_cores import own_cores, share_of


def machine(folder, sockets, cores, threads):
    """Processors numbered as Linux does: first one thread of every core, then the next thread of every core."""
    for thread in range(threads):
        for socket in range(sockets):
            for core in range(cores):
                place = folder / f"cpu{(thread * sockets + socket) * cores + core}" / "topology"
                place.mkdir(parents=True)
                (place / "physical_package_id").write_text(f"{socket}\n")
                (place / "core_id").write_text(f"{core}\n")
    return set(range(sockets * cores * threads))


@pytest.mark.parametrize(("ranks", "shares"), [(2, [{0, 1, 4, 5}, {2, 3, 6, 7}]), (1, [set(range(8))])])
def test_both_threads_of_a_core_belong_to_one_rank(tmp_path, ranks, shares):
    processors = machine(tmp_path, sockets=2, cores=2, threads=2)
    assert [share_of(processors, rank, ranks, tmp_path) for rank in range(ranks)] == shares


def test_shares_are_apart_and_leave_no_core(tmp_path):
    processors = machine(tmp_path, sockets=1, cores=7, threads=2)
    shares = [share_of(processors, rank, 3, tmp_path) for rank in range(3)]
    assert set.union(*shares) == processors and sum(map(len, shares)) == len(processors)
    assert all(len(share) >= 4 for share in shares)


def test_only_what_the_process_may_use_is_shared(tmp_path):
    machine(tmp_path, sockets=1, cores=8, threads=1)
    assert [share_of({2, 3, 6, 7}, rank, 2, tmp_path) for rank in range(2)] == [{2, 3}, {6, 7}]


def test_without_a_topology_each_processor_is_a_core(tmp_path):
    assert share_of({0, 1, 2}, 1, 2, tmp_path) == {1, 2}


def test_fewer_cores_than_ranks_stay_shared(tmp_path):
    processors = machine(tmp_path, sockets=1, cores=1, threads=2)
    assert share_of(processors, 1, 2, tmp_path) == processors


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process")
def test_every_thread_is_bound_and_set_free(tmp_path):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two processors")
    go, seen = threading.Event(), []
    thread = threading.Thread(target=lambda: (go.wait(), seen.append(os.sched_getaffinity(0))))
    thread.start()
    try:
        with own_cores(1, 2, tmp_path):
            assert os.sched_getaffinity(0) == share_of(before, 1, 2, tmp_path) < before
            go.set()
            thread.join()
    finally:
        go.set()
    assert seen == [share_of(before, 1, 2, tmp_path)] and os.sched_getaffinity(0) == before
