"""The blocked kernel on Hopper: what it does not support, how operands reach it, its launches, and on a GPU every one of them.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

from dataclasses import replace

import pytest
import torch
from blocked_launch import launch_blocked
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem, find
from sparsefront_kernels.blocked import sm90
from sparsefront_kernels.blocked.sm90 import (
    SPACE,
    BlockedLaunch,
    BlockedProblem,
    candidates,
    predicted_us,
)
from sparsefront_kernels.blocked.sm90_packing import pack_for_blocked_sm90
from torch._subclasses.fake_tensor import FakeTensorMode

ENTRIES = tuple(kernel.name for kernel in every_layout() if kernel.name.startswith("blocked_sm90"))
HALF = torch.float16


def stored_blocks(block, rows, columns, density=0.5, device="cpu", dtype=HALF):
    kept = torch.rand(rows, columns, device=device) < density
    mask = kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return FORMATS["blocked"].from_dense(torch.randn(mask.shape, device=device, dtype=dtype), mask, block=block)


def problem_of(stored, m, layout="row_major", dtype=HALF, device="cpu"):
    return Problem(m, stored.shape[1], stored.shape[0], dtype, device, layout)


class TestWithoutGPU:
    @pytest.mark.parametrize("name", ENTRIES)
    def test_unsupported_problems(self, name):
        layout = in_layout(name).layout
        wide = stored_blocks((64, 64), 2, 3)
        assert "not torch.float32" in in_layout(name).unsupported_reason(
            wide, problem_of(wide, 8, layout, torch.float32)
        )
        assert "needs a CUDA device" in in_layout(name).unsupported_reason(wide, problem_of(wide, 8, layout))
        narrow = stored_blocks((32, 32), 2, 3)
        assert "not 32x32: half of" in in_layout(name).unsupported_reason(narrow, problem_of(narrow, 8, layout))
        thin = stored_blocks((128, 16), 2, 3)
        by_input = layout in ("feature_major", "feature_to_row")
        expected = "boxes of 64 inputs where X is feature-major, not of 16" if by_input else "needs a CUDA device"
        assert expected in in_layout(name).unsupported_reason(thin, problem_of(thin, 8, layout))

    def test_small_blocks_are_routed_to_the_gathered_kernel(self):
        small, large = stored_blocks((32, 32), 2, 3), stored_blocks((64, 64), 2, 3)
        reasons = [find(stored, problem_of(stored, 1025)).unsupported for stored in (small, large)]
        assert "blocked_sm90" in reasons[1]["blocked_gathered_sm90"]
        few_rows = find(large, problem_of(large, 1024)).unsupported
        assert "needs a CUDA device" in few_rows["blocked_gathered_sm90"], "timing decides"
        assert "needs a CUDA device" in reasons[0]["blocked_gathered_sm90"]
        assert "32x32" in reasons[0]["blocked_sm90"]

    @pytest.mark.parametrize("name", ENTRIES)
    def test_fake_kernel_gives_the_shape(self, name):
        kernel, stored = in_layout(name), stored_blocks((64, 64), 2, 2, dtype=torch.float32)
        problem, packed = problem_of(stored, 5, kernel.layout, torch.float32), pack_for_blocked_sm90(stored)
        with FakeTensorMode(allow_non_fake_inputs=True):
            y = kernel.run(torch.empty(problem.x_shape), packed, None)
        assert y.shape == problem.y_shape

    @pytest.mark.parametrize("kind", ["plain", "inside_nan", "transposed", "unaligned"])
    @pytest.mark.parametrize("feature_major", [False, True])
    @pytest.mark.parametrize("box", [64, 16])
    @pytest.mark.parametrize("m", [1, 13, 16])
    def test_x_reaches_the_kernel_aligned(self, kind, feature_major, box, m, activations):
        layout = "feature_major" if feature_major else "row_major"
        x = activations(Problem(m, 128, 64, HALF, "cpu", layout), kind)
        operand, by_input = sm90._x_operand(x, feature_major=feature_major, box=box)
        assert sm90._is_loadable(operand) and not (by_input and box == 16)
        rows = operand.t()[:m] if by_input else operand
        assert torch.equal(rows, x.t() if feature_major else x)
        if kind == "plain" and not feature_major:
            assert operand.data_ptr() == x.data_ptr(), "row-major X is read where it is"

    def test_rows_that_overlap_are_copied(self):
        x = torch.randn(1, 64, dtype=HALF).expand(5, 64)
        operand, by_input = sm90._x_operand(x, feature_major=False, box=64)
        assert not by_input and operand.stride(0) == 64 and torch.equal(operand, x)


@pytest.mark.parametrize("m", [1, 13, 16])
def test_a_residual_reaches_the_kernel_in_aligned_rows(m):
    """A feature-major Y is stored where it lies, whatever M is; what is added to it is loaded 16 bytes at a time."""
    residual = torch.randn(64, m, dtype=HALF)
    operand = sm90.residual_operand(residual)
    assert torch.equal(operand, residual) and operand.stride(0) % 8 == 0 and operand.stride(1) == 1
    assert (operand.data_ptr() == residual.data_ptr()) == (m == 16)


LARGE = BlockedProblem(4096, 4096, 4096, 64, cta_tiles=32, panels=32 * 64, lengths=(32,) * 32)
FEW_ROWS = BlockedProblem(256, 4096, 4096, 64, cta_tiles=32, panels=32 * 64, lengths=(32,) * 32)
UNEVEN = BlockedProblem(4096, 4096, 4096, 64, cta_tiles=32, panels=2 * 1024, lengths=tuple(range(48, 16, -1)))


class TestTuning:
    def test_candidates_start_with_the_best_predicted(self):
        for problem in (LARGE, FEW_ROWS, UNEVEN):
            chosen = candidates(problem, 132)
            predicted = [predicted_us(problem, launch, 132) for launch in chosen]
            assert predicted == sorted(predicted) and set(chosen) <= set(SPACE) and len(chosen) >= 3

    def test_clusters_share_weights_where_rows_are_few(self):
        """Blocks of 64 rows would read the weights four times."""
        assert candidates(FEW_ROWS, 132)[0].cluster > 1

    def test_one_row_has_no_cluster(self):
        one = BlockedProblem(1, 4096, 4096, 64, 32, 32 * 64, (32,) * 32)
        assert {launch.cluster for launch in candidates(one, 132)} == {1}

    def test_tiles_are_cut_where_the_gpu_would_be_idle(self):
        """Eight CTA tiles of 256 rows are eight blocks; of uneven lists the longest would end last."""
        narrow = BlockedProblem(256, 4096, 1024, 64, 8, 8 * 64, (32,) * 8)
        assert candidates(narrow, 132)[0].cut and candidates(replace(UNEVEN, m=256), 132)[0].cut
        many = replace(LARGE, m=12288)
        assert not any(launch.cut for launch in candidates(many, 132)), "equal work without cutting"

    def test_uneven_lists_are_described(self):
        assert LARGE.shape == LARGE.shape_of_equal_lists == "m=4096 k=4096 n=4096 box=64 k_blocks="
        assert UNEVEN.shape == "m=4096 k=4096 n=4096 box=64 kept=32 longest=1.5 k_blocks="
        assert (LARGE.amount, UNEVEN.amount) == (32, 32.5)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("block", [(128, 128), (64, 64), (64, 32), (128, 16), (192, 96)])
    def test_every_launch_of_the_space(self, block, dtype, assert_close):
        torch.manual_seed(block[0] + block[1])
        stored = stored_blocks(block, 5, 11, 0.4, "cuda", dtype)
        packed, (n, k) = pack_for_blocked_sm90(stored), stored.shape
        bias, m = torch.randn(n, device="cuda"), 1027
        x = torch.randn(m, k, device="cuda", dtype=dtype)
        expected = x.double() @ stored.to_dense().double().t() + bias.double()
        for launch in SPACE:
            for by_input in (False, True) if packed.box == 64 else (False,):
                y = torch.full((m, n), torch.nan, device="cuda", dtype=dtype)
                operand = sm90._x_operand(x.t().contiguous(), feature_major=True, box=64)[0] if by_input else x
                launch_blocked(packed, operand, y, m, launch, x_feature_major=by_input, bias=bias)
                assert_close(y, expected)

    @pytest.mark.parametrize("y_feature_major", [False, True])
    @pytest.mark.parametrize("m", [1, 60, 203, 1030])
    @pytest.mark.parametrize("launch", [BlockedLaunch(1), BlockedLaunch(4), BlockedLaunch(2, cut=64)], ids=str)
    def test_residual_and_activation(self, launch, m, y_feature_major, assert_close, request):
        stored = stored_blocks((64, 64), 7, 9, 0.5, "cuda")
        kernel = in_layout("blocked_sm90_row_to_feature" if y_feature_major else "blocked_sm90")
        problem = problem_of(stored, m, kernel.layout, device="cuda")
        x, residual = (torch.randn(shape, device="cuda", dtype=HALF) for shape in (problem.x_shape, problem.y_shape))
        bias, packed = torch.randn(problem.n, device="cuda"), kernel.pack(stored)
        kernel.run(x, packed, bias)  # builds its library, before the cache is another
        request.getfixturevalue("nothing_tuned")
        kernel.tunable.try_out(packed, problem, launch)
        y = kernel.run(x, packed, bias, activation="gelu", residual=residual)
        sums = torch.nn.functional.gelu(x.double() @ stored.to_dense().double().t() + bias.double())
        assert_close(y, (sums.t() if y_feature_major else sums) + residual.double())

    @pytest.mark.parametrize("cluster", [1, 2, 4])
    def test_many_k_blocks_and_tiles(self, cluster, assert_close):
        """Rings that go round often, blocks with several work tiles of different length, lists of more than 32 k-blocks."""
        kept = torch.rand(24, 90, device="cuda") < torch.rand(24, 1, device="cuda")
        kept[5] = False
        mask = kept.repeat_interleave(128, 0).repeat_interleave(64, 1)
        stored = FORMATS["blocked"].from_dense(
            torch.randn(mask.shape, device="cuda", dtype=HALF), mask, block=(128, 64)
        )
        packed = pack_for_blocked_sm90(stored)
        x = torch.randn(4096, stored.shape[1], device="cuda", dtype=HALF)
        y = torch.full((4096, stored.shape[0]), torch.nan, device="cuda", dtype=HALF)
        launch_blocked(packed, x, y, 4096, BlockedLaunch(cluster))
        assert_close(y, x.double() @ stored.to_dense().double().t())

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        stored = stored_blocks((64, 64), 8, 40, 0.3, "cuda")
        packed, x = pack_for_blocked_sm90(stored), torch.randn(512, 2560, device="cuda", dtype=HALF)
        for launch in SPACE:
            first = torch.empty(512, 512, device="cuda", dtype=HALF)
            launch_blocked(packed, x, first, 512, launch)
            for _ in range(10):
                again = torch.full_like(first, torch.nan)
                launch_blocked(packed, x, again, 512, launch)
                assert torch.equal(first, again), launch

    def test_an_infinity_stays_where_its_block_is_kept(self):
        """Zeros that fill up a list of boxes meet no X, and halves that do not keep a block do not multiply by it."""
        stored = stored_blocks((64, 16), 6, 9, 0.5, "cuda")
        kernel, dense = in_layout("blocked_sm90"), stored.to_dense()
        x = torch.randn(70, stored.shape[1], device="cuda", dtype=HALF)
        unkept = (dense != 0).view(6, 64, 9, 16).any(dim=3).any(dim=1).logical_not()
        row, column = unkept.nonzero()[0].tolist()
        x[:, column * 16] = torch.inf
        y = kernel.run(x, kernel.pack(stored), None)
        assert y[:, row * 64 : row * 64 + 64].isfinite().all()
