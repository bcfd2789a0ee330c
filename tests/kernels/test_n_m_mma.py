"""The n:m kernel on tensor cores: its packed weight in plain loops, its launches; on a GPU every M and launch against float64."""

from dataclasses import replace

import pytest
import torch
from drawn_masks import n_of_m
from mma_walk import one_of_four, three_of_32, two_of_four
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.thread_per_output import (
    PIECES,
    ThreadPerOutputLaunch,
    ThreadPerOutputProblem,
    launch_thread_per_output,
    ring_bytes,
    segments,
)
from sparsefront_kernels.n_m.mma import (
    KERNEL,
    SPACE,
    candidates,
    mma_problem,
    pack_for_mma,
    possible,
    problem_of,
    rows_of,
)


def stored_n_m(kept, size, groups, outputs, dtype=torch.float16, device="cpu", density=1.0):
    mask = n_of_m(kept, size, density)(outputs, size * groups)
    weight = torch.randn(outputs, size * groups, generator=torch.Generator().manual_seed(1)).to(dtype)
    return FORMATS["n_m"].from_dense(weight.to(device), mask.to(device), n=kept, m=size)


def walked_block(problem, launch, rank):
    """Chunks of a strip that a block's warps take, as csrc/n_m_mma.cu and chunk_ring.cuh go through them."""
    begin, last = problem.chunks * rank // launch.splits, problem.chunks * (rank + 1) // launch.splits
    step = segments(problem, launch).chunks
    taken = []
    for warp in range(launch.shares):
        asked, slots, slot, at = begin + warp, [], 0, begin + warp
        while len(slots) < launch.stages and asked < last:
            slots.append(asked)
            asked += launch.shares
        for segment in range(begin, last, step):
            end = min(segment + step, last)
            for piece in range(PIECES):
                while at < segment + (end - segment) * (piece + 1) // PIECES:
                    assert at >= segment and slots[slot] == at
                    taken.append(at)
                    if asked < last:
                        slots[slot] = asked
                        asked += launch.shares
                    at, slot = at + launch.shares, (slot + 1) % launch.stages
    return taken


class TestPacking:
    @pytest.mark.parametrize("density", [1.0, 0.8])
    @pytest.mark.parametrize(("kept", "walked"), [(1, one_of_four), (2, two_of_four)])
    @pytest.mark.parametrize(("groups", "outputs"), [(1, 1), (16, 32), (37, 70)])
    def test_lanes_hold_the_dense_weight(self, kept, walked, groups, outputs, density):
        stored = stored_n_m(kept, 4, groups, outputs, density=density)
        packed = pack_for_mma(stored)
        strips, chunks = packed.values.shape[:2]
        dense = torch.cat([torch.cat([walked(packed, s, at) for at in range(chunks)], dim=1) for s in range(strips)])
        assert torch.equal(dense[:outputs, : 4 * groups], stored.to_dense().double())
        assert dense.count_nonzero() == stored.to_dense().count_nonzero()

    @pytest.mark.parametrize(("groups", "outputs", "rows"), [(1, 1, 16), (8, 32, 16), (19, 70, 32)])
    def test_groups_of_32_meet_the_inputs_that_they_keep(self, groups, outputs, rows):
        stored = stored_n_m(3, 32, groups, outputs, density=0.8)
        packed = pack_for_mma(stored)
        strips, chunks = packed.values.shape[:2]
        x = torch.randn(rows, chunks * 256, generator=torch.Generator().manual_seed(2)).half().double()
        x[:, groups * 32 :] = 0
        parts = [
            sum(three_of_32(packed, s, at, x[:, at * 256 :][:, :256]) for at in range(chunks)) for s in range(strips)
        ]
        y = torch.cat(parts, dim=1)
        expected = x[:, : groups * 32] @ stored.to_dense().double().t()
        torch.testing.assert_close(y[:, :outputs], expected, rtol=1e-12, atol=1e-12)
        assert not y[:, outputs:].any()

    def test_the_problem_of_groups_of_32_is_that_of_its_chunks(self):
        packed = pack_for_mma(stored_n_m(3, 32, 19, 70))
        problem = problem_of(packed, 16)
        assert (problem.chunks, problem.strips) == packed.values.shape[1::-1] == (3, 3)
        assert problem.chunk_bytes == 768 * 2 + packed.indices.shape[2] * 4 == 2048
        assert segments(problem, ThreadPerOutputLaunch(1, 4, 1, 16, stages=2)).chunks == 3

    def test_bytes_are_those_of_kept_weights_and_two_bits_each(self):
        for kept, groups in ((1, 128), (2, 64)):
            packed = pack_for_mma(stored_n_m(kept, 4, groups, 64))
            assert packed.values.nbytes == 2 * 64 * 128
            assert packed.indices.nbytes == 64 * 128 // 4


class TestLaunches:
    @pytest.mark.parametrize(("kept", "size"), [(1, 4), (2, 4), (3, 32)])
    @pytest.mark.parametrize(("m", "rows"), [(1, 8), (8, 8), (9, 16), (16, 16), (33, 64), (64, 64)])
    def test_candidates_take_all_rows_at_once(self, kept, size, m, rows):
        """At least 16 where rows of X are left operands."""
        packed = pack_for_mma(stored_n_m(kept, size, 1024 // size, 64))
        problem, rows = (
            problem_of(packed, m),
            max(rows, 16 if size == 32 else 8),
        )
        chosen = candidates(problem, 132)
        assert 1 < len(chosen) <= 24 and len(set(chosen)) == len(chosen)
        assert all(possible(problem, launch) and launch.rows == rows for launch in chosen)

    def test_rows_are_padded_in_shared_memory(self):
        """Two chunks of 64 inputs, 16 bytes behind each of the 64 rows; before them eight chunks and their barriers."""
        problem = problem_of(pack_for_mma(stored_n_m(2, 4, 32, 32)), 64)
        launch = ThreadPerOutputLaunch(1, 4, 1, 64, stages=2)
        assert ring_bytes(problem, launch) == 8 * 32 * (32 * 2 + 8) + (8 + PIECES) * 8
        rows = max(64 * (128 * 2 + 16), 4 * 32 * 64 * 4)
        assert segments(problem, launch).shared_bytes == ring_bytes(problem, launch) + rows

    def test_weights_come_through_shared_memory_alone(self):
        problem = mma_problem(ThreadPerOutputProblem(16, 4096, 4096, 2, 4, 2, 2))
        assert not possible(problem, ThreadPerOutputLaunch(4, 2, 2, 16)) and possible(
            problem, ThreadPerOutputLaunch(4, 2, 2, 16, stages=2)
        )

    def test_impossible_launches(self):
        four, of_32 = (
            mma_problem(ThreadPerOutputProblem(16, 4096, 4096, *pattern)) for pattern in ((2, 4, 2, 2), (3, 32, 2, 5))
        )
        assert possible(four, ThreadPerOutputLaunch(4, 4, 1, 16, stages=2)) and possible(
            four, ThreadPerOutputLaunch(4, 2, 1, 8, stages=2)
        )
        assert not possible(
            replace(four, m=32), ThreadPerOutputLaunch(4, 4, 1, 32, stages=2)
        )  # 16 warps with 32 sums a lane
        assert not possible(of_32, ThreadPerOutputLaunch(4, 2, 1, 8, stages=2))  # left operands have 16 rows

    @pytest.mark.parametrize(("k", "n"), [(4096, 4096), (8192, 8192), (20480, 5120), (256, 64)])
    @pytest.mark.parametrize("kept", [1, 2])
    def test_candidates_differ_in_what_they_split(self, k, n, kept):
        chosen = candidates(mma_problem(ThreadPerOutputProblem(16, k, n, kept, 4, 2, 2)), 132)
        assert len({launch.splits for launch in chosen}) >= 3
        assert len({(launch.strips, launch.shares) for launch in chosen}) >= 3

    @pytest.mark.parametrize("chunks", [1, 3, 8, 37])
    def test_warps_take_each_chunk_once_where_its_inputs_are(self, chunks):
        problem = mma_problem(ThreadPerOutputProblem(40, chunks * 64, 64, 2, 4, 2, 2))
        for launch in (replace(launch, rows=64) for launch in SPACE):
            if not possible(problem, launch):
                continue
            taken = [at for rank in range(launch.splits) for at in walked_block(problem, launch, rank)]
            assert sorted(taken) == list(range(chunks)), launch


def test_unsupported_problems():
    for kept, size, m, dtype, reason in (
        (2, 4, 65, torch.float16, "takes up to 64 rows of X, not 65"),
        (3, 4, 8, torch.float16, "takes 1:4, 2:4 and 3:32, not 3:4"),
        (2, 8, 8, torch.float16, "takes 1:4, 2:4 and 3:32, not 2:8"),
        (2, 4, 8, torch.float32, "takes float16 or bfloat16, not torch.float32"),
        (2, 4, 8, torch.float16, "needs a CUDA device, not cpu"),
    ):
        mask = n_of_m(kept, size)(8, 16)
        stored = FORMATS["n_m"].from_dense(torch.randn(8, 16), mask, n=kept, m=size)
        assert entry(KERNEL).unsupported_reason(stored, Problem(m, 16, 8, dtype, "cpu")) == reason


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("m", range(1, 65))
    def test_every_m(self, m, activations, assert_close, poisoned_memory):
        for kept, size in ((1, 4), (2, 4), (3, 32)):
            for dtype in (torch.float16, torch.bfloat16):
                stored = stored_n_m(kept, size, (404 if size == 4 else 704) // size + m % 5, 100, dtype, "cuda")
                problem = Problem(m, stored.shape[1], 100, dtype, "cuda")
                x, bias = (
                    activations(problem, ("plain", "inside_nan", "transposed")[m % 3]),
                    torch.randn(100, device="cuda"),
                )
                kernel = entry(KERNEL)
                with poisoned_memory():
                    y = kernel.run(x, kernel.pack(stored), bias)
                assert_close(y, x.double() @ stored.to_dense().double().t() + bias.double())

    @pytest.mark.parametrize(("kept", "size"), [(1, 4), (2, 4), (3, 32)])
    @pytest.mark.parametrize("m", [7, 16, 32, 64])
    def test_every_launch_of_the_space(self, kept, size, m, assert_close):
        """Twice each: a race would show as a result that changes."""
        stored = stored_n_m(kept, size, 2080 // size, 330, device="cuda")
        packed, bias = pack_for_mma(stored), torch.randn(330, device="cuda")
        x = torch.randn(m, 2080, device="cuda").half()
        expected = x.double() @ stored.to_dense().double().t() + bias.double()
        problem = problem_of(packed, m)
        for number, launch in enumerate(SPACE):
            chosen = replace(launch, rows=rows_of(problem), dependent_launch=DEPENDENT_LAUNCH[number % 3])
            if not possible(problem, chosen):
                continue
            first, second = (torch.full((m, 330), torch.nan, device="cuda").half() for _ in range(2))
            for y in (first, second):
                launch_thread_per_output(
                    KERNEL,
                    x,
                    y,
                    values=packed.values,
                    indices=packed.indices,
                    order=None,
                    bias=bias,
                    problem=problem,
                    launch=chosen,
                )
            assert_close(first, expected)
            assert torch.equal(first, second), chosen
