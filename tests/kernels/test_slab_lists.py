"""The lists of `ell_sm90`, `csr_sm90` and `n_m_sm90`: walked over in plain loops as the blocks of a cluster do."""

import pytest
import torch
from slab_walk import walked_product
from slab_weights import stored_csr, stored_ell, stored_n_m
from sparsefront_kernels import FORMATS
from sparsefront_kernels.csr.cuda import pack_for_sm90 as pack_csr
from sparsefront_kernels.ell.cuda import pack_for_sm90 as pack_ell
from sparsefront_kernels.n_m.cuda import pack_for_sm90 as pack_n_m


class TestLists:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("k", "count"), [(8, 1), (256, 9), (600, 30), (600, 0), (16, 4)])
    def test_the_walk_of_the_ell_kernel_gives_the_product(self, block, k, count):
        stored = stored_ell((24, k), block, min(count, k // block))
        x = torch.randn(k, 2, dtype=torch.float64)
        y = walked_product(pack_ell(stored).lists, x, n=24)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    @pytest.mark.parametrize("permuted", [False, True])
    @pytest.mark.parametrize(
        ("n", "m", "groups"), [(2, 4, 64), (1, 4, 150), (3, 32, 20), (5, 7, 40), (64, 64, 5), (1, 1, 3)]
    )
    def test_the_walk_of_the_n_m_kernel_gives_the_product(self, permuted, n, m, groups):
        stored = stored_n_m(21, groups, n, m, permuted=permuted, density=0.8)
        x = torch.randn(groups * m, 2, dtype=torch.float64)
        y = walked_product(pack_n_m(stored).lists, x, n=21)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_groups_that_divide_a_slab_fill_whole_quads(self):
        """So that nothing is multiplied besides: 2:4, 1:4 and 3:32 keep 128, 64 and 24 inputs of every 256."""
        for n, m in ((2, 4), (1, 4), (3, 32)):
            stored = stored_n_m(8, 512 // m, n, m)
            assert pack_n_m(stored).lists.quads * 4 == stored.values.numel()

    def test_an_output_reads_permuted_inputs_as_they_ascend(self):
        mask = torch.tensor([[True, False, False, True]])
        weight, by = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3, 2, 0, 1])
        lists = pack_n_m(FORMATS["n_m"].from_dense(weight, mask, n=1, m=2, input_order=by)).lists
        assert lists.places[: lists.quads].tolist() == [[0, 3, 3, 3]]
        assert lists.values[: lists.quads].flatten().tolist() == [1, 4, 0, 0]

    @pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.5])
    @pytest.mark.parametrize("k", [5, 256, 257, 1000])
    def test_the_walk_of_the_csr_kernel_gives_the_product(self, density, k):
        stored = stored_csr((37, k), density)
        x = torch.randn(k, 3, dtype=torch.float64)
        y = walked_product(pack_csr(stored).lists, x, n=37)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_outputs_that_keep_most_come_first(self):
        mask = torch.zeros(3, 300, dtype=torch.bool)
        mask[0, :2] = mask[2, ::3] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.randn(3, 300), mask)).lists
        assert lists.order.tolist() == [2, 0, 1]
        assert lists.pointers.tolist() == [[0, 86, 100], [100, 104, 104], [104, 104, 104]]

    def test_lists_are_filled_up_at_an_input_of_their_own(self):
        """A weight of zero at an input that is not kept would make NaN of its infinity."""
        mask = torch.zeros(1, 300, dtype=torch.bool)
        mask[0, [7, 9, 299]] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 300), mask)).lists
        assert lists.places.tolist() == [
            [7, 9, 299, 299],
            [0] * 4,
            [0] * 4,
        ]  # two quads beyond, read and not multiplied
        assert lists.values.flatten().tolist() == [1, 1, 1] + 9 * [0]

    @pytest.mark.parametrize("splits", [1, 2, 3, 5])
    @pytest.mark.parametrize("slabs", [1, 2, 5])
    @pytest.mark.parametrize("density", [0.003, 0.02, 0.3])
    def test_blocks_that_share_inputs_meet_each_entry_once(self, splits, slabs, density):
        """Slabs that begin inside of a quad; several slabs in one quad, and slabs of which a list keeps nothing."""
        stored = stored_csr((29, 1200), density)
        x = torch.randn(1200, 2, dtype=torch.float64)
        y = walked_product(pack_csr(stored).lists, x, n=29, splits=splits, slabs=slabs)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_a_quad_of_two_blocks_meets_no_input_that_it_does_not_keep(self):
        """Of entries that another block multiplies, an infinity would make NaN."""
        mask = torch.zeros(1, 1024, dtype=torch.bool)
        mask[0, [3, 255, 256, 600, 1000]] = True
        x = torch.full((1024, 1), torch.inf, dtype=torch.float64)
        x[mask[0]] = 1
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 1024), mask)).lists
        for splits, slabs in ((1, 1), (1, 3), (2, 2), (4, 1)):
            assert walked_product(lists, x, n=1, splits=splits, slabs=slabs).item() == 5

    @pytest.mark.parametrize("splits", [1, 3])
    def test_inputs_beyond_sixteen_bits(self, splits):
        """A place is its input mod 65536, and no pass holds two that differ by it."""
        mask = torch.zeros(2, 66_100, dtype=torch.bool)
        mask[:, [0, 65_535, 65_536, 66_099]] = True
        mask[1, 65_000:66_000:7] = True
        stored = FORMATS["csr"].from_dense(torch.randn(mask.shape), mask)
        lists = pack_csr(stored).lists
        assert (lists.places[-3].int() & 0xFFFF).tolist() == [0, 65_535, 0, 563]
        x = torch.randn(66_100, 1, dtype=torch.float64)
        y = walked_product(lists, x, n=2, splits=splits, slabs=5)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)
