"""Tiles that are 2:4 sparse inside: their format, the walk of the kernel over what is packed, and on a GPU the products.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from drawn_masks import free, halved_tiles, tile_wise
from hypothesis import given, settings
from hypothesis import strategies as st
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.common.wgmma_layout import whole_panels
from sparsefront_kernels.gathered.sm90 import HALVED_LAUNCHES, Sm90Problem, candidates
from sparsefront_kernels.gathered.sm90_packing import dense_weight
from sparsefront_kernels.gathered.sm90_schedule import schedule_tensors
from sparsefront_kernels.gathered_2_4.sm90 import pack_for_sm90

CPU = torch.device("cpu")
HALF = torch.float16
SPARSE = tuple(kernel.name for kernel in every_layout() if kernel.name.startswith("gathered_2_4_sm90"))


def stored_weight(tile, n, k, density=0.5, seed=0, dropped=0.3, dtype=HALF, device="cpu"):
    mask = halved_tiles(tile, density, seed, dropped)(n, k)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return FORMATS["gathered_2_4"].from_dense(weight.to(device), mask.to(device), tile=tile)


def product_from_packed(packed, x, blocks=3):
    """Y [M, N] in float64, as the blocks of the grid compute it; each element must be written once."""
    m = len(x)
    panels = whole_panels(packed.panels).double()
    y, written = torch.zeros(m, packed.n, dtype=torch.float64), torch.zeros(m, packed.n, dtype=torch.int64)
    work, *_ = schedule_tensors(packed.lengths, m, blocks, 1024, CPU)
    for cta_tile, first, count, place in work.tolist():
        width = 64 * ((place >> 28) + 1)
        rows = slice(place & 0xFFFFFFF, min((place & 0xFFFFFFF) + width, m))
        sums = torch.zeros(2, rows.stop - rows.start, 64, dtype=torch.float64)
        for k_block in packed.k_blocks[first : first + count].tolist():
            inputs, use, begins = torch.tensor(k_block[:64]), k_block[64], k_block[65:67]
            gathered = x[rows][:, inputs.clamp(min=0)] * (inputs >= 0)
            for half in range(2):
                mine = use >> 4 * half & 15
                assert mine in (0, 15), "a half uses all of a k-block or nothing"
                if mine:
                    sums[half] += gathered @ panels[begins[half]].t()
        for half, outputs in enumerate(packed.outputs[cta_tile].view(2, 64)):
            there = outputs >= 0
            written[rows, outputs[there].long()] += 1
            y[rows, outputs[there].long()] += sums[half][:, there]
    assert (written == 1).all()
    return y


class TestFormat:
    def test_the_example_of_the_class(self):
        mask = torch.zeros(2, 6, dtype=torch.bool)
        mask[0, :2] = mask[1, 3:5] = True
        stored = FORMATS["gathered_2_4"].from_dense(torch.arange(1.0, 13).view(2, 6), mask, tile=2)
        assert stored.inputs.tolist() == [[0, 1, 3, 4]] and stored.values.tolist() == [[[1, 2], [10, 11]]]
        assert stored.metadata.tolist() == [[0 + 4 * 1 + 16 * 2 + 64 * 3]]

    def test_an_input_that_all_outputs_drop_leaves_no_trace(self):
        mask = torch.tensor([[1, 1, 0, 0, 0, 1, 1], [1, 0, 1, 0, 0, 1, 1]]).bool()
        stored = FORMATS["gathered_2_4"].from_dense(torch.ones(2, 7), mask, tile=2)
        assert stored.inputs.tolist() == [[0, 1, 2, -1], [5, 6, -1, -1]]

    def test_whole_tiles_are_windows_of_two(self):
        """A mask on its way to 2:4, whose outputs still agree."""
        mask = tile_wise(8, 0.5)(24, 30)
        stored = FORMATS["gathered_2_4"].from_dense(torch.ones(24, 30), mask, tile=8)
        assert torch.equal(stored.to_dense(), mask.float()) and (stored.inputs[:, 2:] == -1).all()

    @settings(max_examples=20)
    @given(
        tile=st.integers(1, 9),
        n=st.integers(1, 20),
        k=st.integers(1, 30),
        density=st.floats(0, 1),
        seed=st.integers(0, 99),
    )
    def test_any_mask_can_be_held(self, tile, n, k, density, seed):
        """As inputs that a layer before lost leave one: without structure."""
        mask = free(density, seed)(n, k)
        stored = FORMATS["gathered_2_4"].from_dense(torch.ones(n, k), mask, tile=tile)
        assert torch.equal(stored.to_dense(), mask.float())

    @pytest.mark.parametrize("density", [0.3, 1.0])
    def test_windows_are_those_of_the_pattern(self, density):
        mask = halved_tiles(16, density, seed=3)(80, 90)
        stored = FORMATS["gathered_2_4"].from_dense(torch.ones(80, 90), mask, tile=16)
        rows = mask[stored.output_index.long()].split(16)
        assert stored.tile_offsets.diff().tolist() == [-(-int(tile[0].sum()) // 2) for tile in rows]

    def test_filled_panels_are_the_same_weight(self):
        stored = stored_weight(16, 90, 70)
        filled = stored.filled()
        assert torch.equal(filled.to_dense(), stored.to_dense())
        assert torch.equal(filled.output_index, stored.output_index)


class TestPacking:
    @settings(max_examples=15)
    @given(
        tile=st.sampled_from([64, 128, 192, 256]),
        n=st.integers(1, 700),
        k=st.integers(1, 200),
        density=st.floats(0.01, 1),
        dropped=st.sampled_from([0.0, 0.4]),
        seed=st.integers(0, 1000),
        m=st.integers(1, 600),
    )
    def test_the_walk_of_the_kernel_gives_the_product(self, tile, n, k, density, dropped, seed, m):
        stored = stored_weight(tile, n, k, density, seed, dropped)
        packed = pack_for_sm90(stored)
        x = torch.randn(m, k, dtype=torch.float64)
        torch.testing.assert_close(product_from_packed(packed, x), x @ stored.to_dense().double().t())
        assert list(packed.lengths) == sorted(packed.lengths, reverse=True)

    @pytest.mark.parametrize("tile", [64, 128, 192])
    def test_the_weight_is_rebuilt_from_what_the_kernel_reads(self, tile):
        stored = stored_weight(tile, 500, 150)
        packed = pack_for_sm90(stored)
        assert torch.equal(dense_weight(packed), stored.to_dense())

    def test_narrow_tiles_are_unsupported(self):
        with pytest.raises(ValueError, match="takes tiles of a multiple of 64 outputs, not of 32"):
            pack_for_sm90(stored_weight(32, 100, 50))


class TestEntries:
    @pytest.mark.parametrize("name", SPARSE)
    def test_unsupported_problems(self, name):
        def reason(stored, dtype=HALF):
            n, k = stored.shape
            return in_layout(name).unsupported_reason(stored, Problem(8, k, n, dtype, CPU, in_layout(name).layout))

        wide = stored_weight(64, 130, 50)
        assert "not torch.float32" in reason(wide, torch.float32)
        assert "needs a CUDA device" in reason(wide)
        assert "not of 16" in reason(stored_weight(16, 130, 50))

    def test_only_the_persistent_kernel_reads_halved_panels(self):
        halved = Sm90Problem(64, 1024, 1024, 8, 64, halved=True)
        assert all(launch.persistent for launch in candidates(halved, 132))
        assert not all(launch.persistent for launch in candidates(Sm90Problem(64, 1024, 1024, 8, 64), 132))
        packed = pack_for_sm90(stored_weight(64, 130, 50))
        assert Sm90Problem.of(packed, 64).halved and HALVED_LAUNCHES.kernel == "gathered_2_4_sm90"

    def test_the_benchmark_draws_the_sparsity(self):
        drawn = family_masks("gathered_2_4").source("equal", 64).draw(512, 512, 0.75, CPU)
        assert drawn.mask.float().mean() == 0.25
        with pytest.raises(ValueError, match="a sparsity of 0.4 cannot be had"):
            family_masks("gathered_2_4").source("equal", 64).draw(512, 512, 0.4, CPU)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("tile", [64, 128, 192])
    @pytest.mark.parametrize("m", [8, 1027])
    def test_every_layout(self, tile, m, dtype, assert_close):
        stored = stored_weight(tile, 700, 500, 0.5, dtype=dtype, device="cuda")
        bias, rows = torch.randn(700, device="cuda"), torch.randn(m, 500, device="cuda", dtype=dtype)
        expected = rows.double() @ stored.to_dense().double().t() + bias.double()
        for name in SPARSE:
            kernel = in_layout(name)
            x = rows.t().contiguous() if kernel.layout.startswith("feature") else rows
            y = kernel.run(x, kernel.pack(stored), bias)
            assert_close(y.t() if kernel.layout in ("feature_major", "row_to_feature") else y, expected)

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        stored = stored_weight(128, 1024, 2560, 0.5, dropped=0.0, device="cuda")
        kernel, x = in_layout("gathered_2_4_sm90_feature_major"), torch.randn(2560, 4096, device="cuda", dtype=HALF)
        packed = kernel.pack(stored)
        first = kernel.run(x, packed, None)
        for _ in range(20):
            assert torch.equal(kernel.run(x, packed, None), first)
