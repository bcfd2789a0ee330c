"""Blocks that are 2:4 sparse themselves: their format, their panels as the tensor cores read them, and on a GPU the products.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from blocked_launch import launch_blocked
from drawn_masks import blocks, both, n_of_m
from hypothesis import given, settings
from hypothesis import strategies as st
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.blocked.sm90 import SPACE, BlockedProblem, candidates, predicted_us
from sparsefront_kernels.blocked.sm90_packing import dense_weight, pack_for_blocked_sm90
from sparsefront_kernels.blocked_2_4.sm90 import pack_for_blocked_2_4_sm90
from sparsefront_kernels.common.wgmma_layout import halved_panels, is_halved, whole_panels

HALF = torch.float16
SPARSE = tuple(kernel.name for kernel in every_layout() if kernel.name.startswith("blocked_2_4_sm90"))
CPU = torch.device("cpu")


def stored_weight(block, rows, columns, density=0.5, seed=0, dtype=HALF, device="cpu"):
    n, k = rows * block[0], columns * block[1]
    mask = both(blocks(*block, density, seed), n_of_m(2, 4, 0.9, seed))(n, k)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return FORMATS["blocked_2_4"].from_dense(weight.to(device), mask.to(device), block=block)


def value_and_places(panel, row, group):
    """The two values of four inputs and their places, as `wgmma.mma_async.sp` finds them in a panel."""
    address = row * 64 + group * 4  # bytes, two bytes a value
    address ^= (address >> 7 & 3) << 4
    values = [panel[address // 2].item(), panel[address // 2 + 1].item()]
    # of 32 inputs, 16 belong to a lane; 16 rows belong to a warp, of which a lane has number q and number 8 + q
    lane = row // 16 * 32 + row % 8 * 4 + group // 4
    word = panel[2048:].view(torch.int32)[lane].item() & 0xFFFFFFFF
    nibble = word >> (row % 16 // 8 * 16 + group % 4 * 4) & 15
    return values, (nibble & 3, nibble >> 2)


class TestPanels:
    def test_every_value_is_where_the_instruction_looks_for_it(self):
        mask = n_of_m(2, 4, 0.8)(64, 64)
        panel = torch.where(mask, torch.randn(64, 64), 0.0).to(HALF)
        (halved,) = halved_panels(panel[None])
        found = torch.zeros(64, 64, dtype=HALF)
        for row in range(64):
            for group in range(16):
                values, places = value_and_places(halved, row, group)
                assert places[0] < places[1]
                for value, place in zip(values, places, strict=True):
                    found[row, group * 4 + place] = value
        assert torch.equal(found, panel)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_panels_come_back(self, dtype):
        panels = torch.where(n_of_m(2, 4, 0.8)(320, 64), torch.randn(320, 64), 0.0).to(dtype).view(5, 64, 64)
        halved = halved_panels(panels)
        assert is_halved(halved) and halved.shape == (5, 2304) and halved.dtype == dtype
        assert torch.equal(whole_panels(halved), panels)

    def test_three_of_four_are_rejected(self):
        with pytest.raises(ValueError, match="output 0 keeps 4 weights in group 0, at most 2"):
            halved_panels(torch.ones(1, 64, 64, dtype=HALF))

    @settings(max_examples=10)
    @given(
        block=st.sampled_from([(64, 64), (128, 64), (128, 128), (192, 64)]),
        rows=st.integers(1, 5),
        columns=st.integers(1, 5),
        density=st.floats(0, 1),
        seed=st.integers(0, 1000),
    )
    def test_the_weight_is_rebuilt_from_what_the_kernel_reads(self, block, rows, columns, density, seed):
        """Lists of k-blocks and halves are those of whole blocks, whose walk test_blocked_sm90_packing.py follows."""
        stored = stored_weight(block, rows, columns, density, seed)
        packed, whole = pack_for_blocked_2_4_sm90(stored), pack_for_blocked_sm90(stored.filled())
        for same in ("k_blocks", "outputs"):
            assert torch.equal(getattr(packed, same), getattr(whole, same))
        assert torch.equal(dense_weight(packed), stored.to_dense())


class TestFormat:
    def test_half_of_the_bytes_and_the_places(self):
        stored = stored_weight((64, 64), 4, 4, density=1.0)
        assert stored.nbytes == 16 * 64 * 64 * (1 + 1 / 8) + 4 * (5 + 16)

    def test_a_kept_zero_keeps_its_block(self):
        mask = n_of_m(2, 4)(8, 16)
        stored = FORMATS["blocked_2_4"].from_dense(torch.zeros(8, 16), mask, block=[8, 8])
        assert stored.block_columns.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("block", "kept", "message"),
        [
            ((4, 6), 0.5, "the 6 inputs of a block must be a multiple of 4"),
            ((3, 4), 0.5, "3x4 do not divide"),
            ((4, 4), 1.0, "blocked_2_4: output 0 keeps 4 weights in group 0"),
        ],
    )
    def test_masks_without_the_structure(self, block, kept, message):
        mask = torch.ones(8, 12, dtype=torch.bool) if kept == 1.0 else n_of_m(2, 4)(8, 12)
        with pytest.raises(ValueError, match=message):
            FORMATS["blocked_2_4"].from_dense(torch.ones(8, 12), mask, block=block)


class TestEntries:
    @pytest.mark.parametrize("name", SPARSE)
    def test_unsupported_problems(self, name):
        def reason(stored, dtype=HALF):
            n, k = stored.shape
            return in_layout(name).unsupported_reason(stored, Problem(8, k, n, dtype, CPU, in_layout(name).layout))

        wide = stored_weight((64, 64), 2, 3)
        assert "not torch.float32" in reason(wide, torch.float32)
        assert "needs a CUDA device" in reason(wide)
        assert "64 outputs" in reason(stored_weight((32, 64), 2, 3))
        assert "multiple of 64 inputs, not 64x32" in reason(stored_weight((64, 32), 2, 3))

    def test_the_benchmark_draws_the_sparsity(self):
        drawn = family_masks("blocked_2_4").source("equal", 64).draw(512, 512, 0.75, CPU)
        assert drawn.mask.float().mean() == 0.25 and list(drawn.storage) == ["blocked_2_4", "blocked", "gathered"]
        for family, parameters in drawn.storage.items():
            stored = FORMATS[family].from_dense(drawn.weight, drawn.mask, **parameters)
            assert torch.equal(stored.to_dense() != 0, drawn.mask)
        with pytest.raises(ValueError, match="a sparsity of 0.4 cannot be had"):
            family_masks("blocked_2_4").source("equal", 64).draw(512, 512, 0.4, CPU)

    def test_the_model_knows_that_weights_are_halved(self):
        sizes = (4096, 4096, 4096, 64, 32, 32 * 64, (32,) * 32)
        whole, halved = BlockedProblem(*sizes), BlockedProblem(*sizes, halved=True)
        for problem in (whole, halved):
            best = candidates(problem, 132)[0]
            assert predicted_us(problem, best, 132) > 50
        assert predicted_us(halved, SPACE[0], 132) < predicted_us(whole, SPACE[0], 132)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("block", [(128, 128), (64, 64), (192, 64)])
    def test_every_launch_of_the_space(self, block, dtype, assert_close):
        stored = stored_weight(block, 5, 7, 0.5, dtype=dtype, device="cuda")
        packed, (n, k), m = pack_for_blocked_2_4_sm90(stored), stored.shape, 1027
        x, bias = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(n, device="cuda")
        expected = x.double() @ stored.to_dense().double().t() + bias.double()
        by_input = x.new_empty(k, 1032)[:, :m].copy_(x.t())
        for launch in SPACE:
            for operand in (x, by_input):
                y = torch.full((m, n), torch.nan, device="cuda", dtype=dtype)
                launch_blocked(packed, operand, y, m, launch, x_feature_major=operand is by_input, bias=bias)
                assert_close(y, expected)

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        stored = stored_weight((128, 128), 8, 20, 0.5, device="cuda")
        packed, x = pack_for_blocked_2_4_sm90(stored), torch.randn(4096, 2560, device="cuda", dtype=HALF)
        for launch in SPACE:
            first = torch.empty(4096, 1024, device="cuda", dtype=HALF)
            launch_blocked(packed, x, first, 4096, launch)
            for _ in range(10):
                again = torch.full_like(first, torch.nan)
                launch_blocked(packed, x, again, 4096, launch)
                assert torch.equal(first, again), launch
