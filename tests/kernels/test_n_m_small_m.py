"""The n:m kernel for few rows: its packed weight in plain loops, its launches; on a GPU every M and launch against float64."""

import itertools
from dataclasses import replace

import pytest
import torch
from drawn_masks import any_order, n_of_m, order
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.thread_per_output import (
    SHARED_BYTES,
    SPACE,
    ThreadPerOutputLaunch,
    ThreadPerOutputProblem,
    candidates,
    launch_thread_per_output,
    packed_chunks,
    possible,
    segments,
)
from sparsefront_kernels.n_m.small_m import KERNEL, LAUNCHES, index_bits, pack_for_small_m, problem_of
from sparsefront_kernels.tuning.launches import chosen_launch
from thread_per_output_walk import walked_product

PATTERNS = [(1, 1), (2, 4), (1, 4), (3, 4), (5, 12), (3, 32), (16, 32), (7, 33), (32, 64), (1, 64)]


def stored_n_m(n_kept, m, groups, outputs, dtype=torch.float16, device="cpu", density=1.0):
    mask = n_of_m(n_kept, m, density)(outputs, groups * m)
    weight = torch.randn(outputs, groups * m, generator=torch.Generator().manual_seed(1)).to(dtype)
    return FORMATS["n_m"].from_dense(weight.to(device), mask.to(device), n=n_kept, m=m)


class TestPacking:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize(("n_kept", "m"), PATTERNS)
    def test_the_walk_of_the_kernel_gives_the_product(self, n_kept, m, dtype):
        stored = stored_n_m(n_kept, m, groups=7, outputs=37, dtype=dtype, density=0.8)
        packed = pack_for_small_m(stored)
        x = torch.randn(2, 7 * m, dtype=torch.float64)
        y = walked_product(packed.values, packed.indices, x, n=37, bits=packed.bits, block=1, kept=n_kept, group_size=m)
        torch.testing.assert_close(y, x @ stored.to_dense().double().t())

    def test_bits_of_an_index(self):
        assert [index_bits(m) for m in (1, 4, 5, 16, 17, 32, 33, 64)] == [2, 2, 4, 4, 5, 5, 6, 6]

    def test_bytes_are_those_of_kept_weights_and_packed_indices(self):
        packed = pack_for_small_m(stored_n_m(3, 32, groups=32, outputs=64))
        kept = 64 * 32 * 3
        assert packed.values.nbytes == 2 * kept
        assert packed.indices.nbytes == kept * 5 // 8

    def test_numbers_may_straddle_words(self):
        """Indices of five bits: the seventh begins two bits before the end of the first word."""
        indices = torch.arange(32)[None].expand(32, 32)
        _, words = packed_chunks(torch.zeros(32, 32).half(), indices, bits=5)
        first = words[0, 0].view(-1)[:4].tolist()
        last = words[0, 0].view(-1)[4 * 32].item()
        number = sum((word & 0xFFFFFFFF) << 32 * at for at, word in enumerate([*first, last]))
        assert [number >> 5 * j & 31 for j in range(32)] == list(range(32))

    def test_the_order_of_inputs_goes_to_the_kernel(self):
        mask = any_order(n_of_m(2, 4), inputs=True)(8, 64)
        stored = FORMATS["n_m"].from_dense(torch.randn(8, 64), mask, n=2, m=4, input_order=order(64))
        packed = pack_for_small_m(stored)
        x = torch.randn(1, 64, dtype=torch.float64)
        y = walked_product(
            packed.values, packed.indices, x[:, packed.input_order.long()], n=8, bits=2, block=1, kept=2, group_size=4
        )
        torch.testing.assert_close(y, x @ stored.to_dense().double().t())


class TestLaunches:
    def problem(self, **changes):
        return replace(ThreadPerOutputProblem(1, 4096, 4096, 3, 32, 2, 5), **changes)

    def test_segments_hold_the_inputs_of_their_chunks(self):
        """12 chunks of 32 weights are 384 of 128 groups, four blocks of a cluster share them: 32 groups each."""
        assert segments(self.problem(), ThreadPerOutputLaunch(1, 8, 4, 1)).chunks == 3
        assert segments(self.problem(), ThreadPerOutputLaunch(1, 8, 4, 1)).shared_bytes == 4 * 32 * 32

    def test_wide_slots_are_brought_in_several_segments(self):
        wide = self.problem(m=8, k=20480, element_bytes=4)
        fitting = segments(wide, ThreadPerOutputLaunch(1, 8, 1, 8))
        assert fitting.chunks < wide.chunks and fitting.shared_bytes <= SHARED_BYTES

    @pytest.mark.parametrize(("n_kept", "m"), PATTERNS)
    @pytest.mark.parametrize("rows", [1, 2, 3, 8, 64])
    @pytest.mark.parametrize("element_bytes", [2, 4])
    def test_candidates_are_few_and_possible(self, n_kept, m, rows, element_bytes):
        problem = ThreadPerOutputProblem(rows, 96 * m, 300, n_kept, m, element_bytes, index_bits(m))
        chosen = candidates(problem, 132)
        assert 1 < len(chosen) <= 16 and len(set(chosen)) == len(chosen)
        assert all(possible(problem, launch) for launch in chosen)
        assert {launch.dependent_launch for launch in chosen} == set(DEPENDENT_LAUNCH)

    def test_impossible_launches(self):
        for launch in (
            ThreadPerOutputLaunch(2, 8, 1, 1),  # 16 warps
            ThreadPerOutputLaunch(1, 8, 9, 1),
            ThreadPerOutputLaunch(1, 8, 1, 3),
            ThreadPerOutputLaunch(1, 8, 1, 1, "never"),
        ):
            assert not possible(self.problem(), launch)

    def test_what_was_measured_is_used(self, nothing_tuned, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        packed = pack_for_small_m(stored_n_m(3, 32, groups=4, outputs=64))
        problem = Problem(5, 128, 64, torch.float16, "cuda")
        odd = ThreadPerOutputLaunch(4, 2, 2, 4, "off")
        LAUNCHES.remember(packed, problem, odd, 1.234)
        assert chosen_launch(LAUNCHES, problem_of(packed, problem.m), "Some GPU", 132) == odd
        other = problem_of(packed, 6)
        assert chosen_launch(LAUNCHES, other, "Some GPU", 132) == candidates(other, 132, most=1)[0]


class TestEntry:
    def test_unsupported_problems(self):
        kernel, stored = entry(KERNEL), stored_n_m(2, 4, groups=4, outputs=8)
        for m, dtype, reason in (
            (65, torch.float16, "takes up to 64 rows of X, not 65"),
            (1, torch.float64, "takes float16, bfloat16 or float32, not torch.float64"),
            (1, torch.float16, "needs a CUDA device, not cpu"),
        ):
            assert kernel.unsupported_reason(stored, Problem(m, 16, 8, dtype, "cpu")) == reason

    def test_no_rows_need_no_gpu(self):
        packed = pack_for_small_m(stored_n_m(2, 4, groups=4, outputs=8))
        assert entry(KERNEL).run(torch.ones(0, 16).half(), packed).shape == (0, 8)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("m", range(1, 65))
    def test_every_m(self, m, activations, assert_close, poisoned_memory):
        for (n_kept, size), dtype in itertools.product(PATTERNS, (torch.float16, torch.bfloat16, torch.float32)):
            stored = stored_n_m(n_kept, size, groups=9 + m % 5, outputs=100, dtype=dtype, device="cuda")
            problem = Problem(m, stored.shape[1], 100, dtype, "cuda")
            x, bias = (
                activations(problem, ("plain", "inside_nan", "transposed")[m % 3]),
                torch.randn(100, device="cuda"),
            )
            kernel = entry(KERNEL)
            with poisoned_memory():
                y = kernel.run(x, kernel.pack(stored), bias)
            assert_close(y, x.double() @ stored.to_dense().double().t() + bias.double())

    @pytest.mark.parametrize(("n_kept", "size"), [(2, 4), (1, 4), (3, 32), (32, 64)])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    def test_every_launch_of_the_space(self, n_kept, size, dtype, assert_close):
        """Twice each: a race would show as a result that changes."""
        stored = stored_n_m(n_kept, size, groups=2048 // size, outputs=330, dtype=dtype, device="cuda")
        packed, bias = pack_for_small_m(stored), torch.randn(330, device="cuda")
        for m in (1, 7):
            x = torch.randn(m, stored.shape[1], device="cuda", dtype=dtype)
            expected = x.double() @ stored.to_dense().double().t() + bias.double()
            problem = problem_of(packed, m)
            for number, launch in enumerate(SPACE):
                chosen = replace(launch, dependent_launch=DEPENDENT_LAUNCH[number % 3])
                if not possible(problem, chosen):
                    continue
                first, second = (torch.full((m, 330), torch.nan, device="cuda", dtype=dtype) for _ in range(2))
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

    def test_kernels_that_follow_one_another_wait(self):
        """Each product reads what the one before wrote; started early, it must not read too soon."""
        stored = [
            FORMATS["n_m"].from_dense(
                torch.randn(2048, 2048, device="cuda").half() / 30, n_of_m(2, 4)(2048, 2048).cuda(), n=2, m=4
            )
            for _ in range(6)
        ]
        kernel = entry(KERNEL)
        packed = [kernel.pack(one) for one in stored]
        for m in (1, 3):
            for _ in range(5):
                y = x = torch.randn(m, 2048, device="cuda").half()
                expected = x.double()
                for one in stored:
                    expected = (expected @ one.to_dense().double().t()).half().double()
                for one in packed:
                    y = kernel.run(y, one)
                assert torch.linalg.norm(y.double() - expected) <= 2e-3 * torch.linalg.norm(expected)
