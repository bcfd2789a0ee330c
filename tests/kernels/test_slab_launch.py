"""Launch parameters of `ell_sm90`, `csr_sm90` and `n_m_sm90`."""

import pytest
import torch
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.slab_launch import (
    BLOCK_SHARED_BYTES,
    MOST_CANDIDATES,
    SPACE,
    SlabLaunch,
    SlabProblem,
    candidates,
    passes,
    possible,
    shared_bytes,
)
from sparsefront_kernels.common.slab_product import vectors_of


class TestLaunches:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 128), (1024, 1024, 1024), (16384, 1024, 1024), (1, 300, 8)])
    def test_candidates_are_few_and_possible(self, block, m, k, n):
        problem = SlabProblem(m, k, n // block, block, n * k // 10, 4, True)
        chosen = candidates(problem, 132)
        assert 1 < len(chosen) <= MOST_CANDIDATES and len(set(chosen)) == len(chosen)
        assert all(possible(problem, launch) for launch in chosen)
        assert {launch.dependent_launch for launch in chosen} == set(DEPENDENT_LAUNCH)

    def test_impossible_launches(self):
        problem = SlabProblem(128, 700, 64, 2, 1000, 4, True)
        for launch in (
            SlabLaunch(0, 8, 1, 1, 1),
            SlabLaunch(2, 32, 1, 1, 1),
            SlabLaunch(2, 8, 4, 1, 1),  # there are three slabs
            SlabLaunch(2, 8, 2, 3, 1),  # and two of a block
            SlabLaunch(2, 8, 9, 1, 1),
            SlabLaunch(2, 8, 0, 1, 1),
            SlabLaunch(16, 16, 1, 2, 1),  # sums of 2048 outputs
            SlabLaunch(2, 8, 1, 1, 2),  # blocks of 2
            SlabLaunch(2, 8, 1, 1, 1, "never"),
        ):
            assert not possible(problem, launch), launch

    @pytest.mark.parametrize("name", ["sets", "warps", "splits", "slabs", "lane_units"])
    def test_every_parameter_of_the_space_is_possible_somewhere(self, name):
        problems = [SlabProblem(128, k, 64, 1, 1000, 4, True) for k in (256, 1024, 1792, 12288)]
        chosen = {getattr(launch, name) for launch in SPACE for problem in problems if possible(problem, launch)}
        assert chosen == {getattr(launch, name) for launch in SPACE}

    def test_shared_memory(self):
        problem = SlabProblem(128, 1100, 128, 2, 1000, 2, True)  # 5 slabs, 64 rows
        for launch, times, size in (
            (SlabLaunch(2, 4, 1, 5, 1), 1, 1100 * 128),
            (SlabLaunch(2, 4, 1, 3, 1), 2, 768 * 128 + 4 * 8 * 2 * 64 * 4),
            (SlabLaunch(1, 4, 2, 3, 1), 1, 768 * 128 + 4 * 4 * 2 * 64 * 4),
        ):
            assert (passes(problem, launch), shared_bytes(problem, launch)) == (times, size)
            assert possible(problem, launch) and size <= BLOCK_SHARED_BYTES

    def test_launches_that_do_the_same_are_not_both_timed(self):
        """Of nine slabs some block has two in a cluster of six or eight as in one of five; room for four saves no pass."""
        problem = SlabProblem(128, 2304, 64, 1, 1000, 4, True)
        found = {(launch.splits, launch.slabs) for launch in SPACE if possible(problem, launch)}
        assert {splits for splits, _ in found} == {1, 2, 3, 5}
        assert {slabs for splits, slabs in found if splits == 1} == {1, 2, 3, 5}
        assert {slabs for splits, slabs in found if splits == 2} == {1, 2, 3, 5}

    def test_few_tiles_share_inputs(self):
        """Untuned, products with fewer blocks than multiprocessors are split along K, those with enough are not."""
        assert candidates(SlabProblem(128, 2304, 256, 1, 256 * 2304 // 20, 4, True), 132)[0].splits > 1
        assert candidates(SlabProblem(8192, 1024, 4096, 1, 4096 * 1024 // 8, 4, True), 132)[0].splits == 1

    def test_vectors_are_whole_and_aligned(self):
        x = torch.zeros(10, 24)
        assert vectors_of(x) == vectors_of(x[:, 4:12]) == vectors_of(x.half()) == 1
        assert vectors_of(x.t()) == vectors_of(x.half().t()) == vectors_of(x[:9, 4:12].t()) == 2
        for other in (x[:, 1:9], x[:, :6], x[:, 1:9].t(), x[:, :6].t(), x.half()[:, :20].t(), torch.zeros(10, 23).t()):
            assert vectors_of(other) == 0
