"""The kernel for few rows: its row tiles; on a GPU weights that change, infinities, strides."""

import copy
from dataclasses import replace

import pytest
import torch
from drawn_masks import tile_wise
from in_layout import InLayout
from sparsefront_kernels import FORMATS, entry
from sparsefront_kernels.cuda.launch import was_read_before
from sparsefront_kernels.gathered.small_m import dense_weight, pack_for_small_m
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR

KERNELS = {layout: InLayout(entry("gathered_small_m"), layout) for layout in LAYOUTS}


def stored_weight(k, device="cpu"):
    """Tiles of 16 outputs, every third output dropped."""
    mask = tile_wise(16, 0.3)(200, k)
    return FORMATS["gathered"].from_dense(torch.randn(200, k).half().to(device), mask.to(device), tile=16)


class TestTables:
    def test_inputs_beyond_16_bits(self):
        mask = torch.zeros(16, 65_535, dtype=torch.bool)
        mask[:, [0, 32_767, 32_768, 65_534]] = True
        stored = FORMATS["gathered"].from_dense(torch.randn(16, 65_535).half(), mask, tile=16)
        assert torch.equal(dense_weight(pack_for_small_m(stored)), stored.to_dense())

    def test_early_reads_of_a_weight(self):
        packed = pack_for_small_m(stored_weight(90))
        parts = (packed.panels, packed.lists, packed.row_tiles, packed.outputs)
        assert [was_read_before(*parts) for _ in range(3)] == [False, True, True]
        for part in parts:
            part.add_(0)  # may have written anything
            assert [was_read_before(*parts) for _ in range(2)] == [False, True]
        assert was_read_before(*(part.detach() for part in parts)), "in the same memory"
        assert not was_read_before(*copy.deepcopy(parts)), "in other memory"
        with torch.inference_mode():  # such tensors count no changes
            inferred = [part.clone() for part in parts]
        assert [was_read_before(*inferred) for _ in range(2)] == [False, True]


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    def test_changed_weight_is_read_anew(self, assert_close):
        stored, other = (stored_weight(300, "cuda") for _ in range(2))
        other = replace(other, values=-2 * other.values)
        kernel, x = entry("gathered_small_m"), torch.randn(3, stored.shape[1], device="cuda").half()
        packed, changed = (kernel.pack(one) for one in (stored, other))
        for one in (stored, other, other):
            assert_close(kernel.run(x, packed, None), x.double() @ one.to_dense().double().t())
            packed.panels.copy_(changed.panels)

    def test_unwanted_inputs_are_never_read(self):
        """An infinity at an input that a tile does not keep must not reach its outputs."""
        mask = torch.zeros(64, 100, dtype=torch.bool, device="cuda")
        mask[:32, :37] = mask[32:, 40:83] = True
        stored = FORMATS["gathered"].from_dense(torch.randn(64, 100, device="cuda").half(), mask, tile=32)
        for layout, kernel in KERNELS.items():
            for m in (1, 5, 16, 64):
                x = torch.randn(m, 100, device="cuda").half()
                x[:, 37:40] = x[:, 83:] = torch.inf
                x = x.t().contiguous() if layout in X_FEATURE_MAJOR else x
                assert kernel.run(x, kernel.pack(stored), None).isfinite().all()

    def test_any_strides_of_x(self, assert_close):
        """From 2**31 on, strides cost a copy of X."""
        stored = stored_weight(300, "cuda")
        n, k = stored.shape
        wide = torch.randn(7 * k, 3 * 20, device="cuda", dtype=torch.float16)
        x = wide[::7, ::3].t()  # [20, K]
        kernel = entry("gathered_small_m")
        expected = x.double() @ stored.to_dense().double().t()
        for rows in (20, 5):
            assert_close(kernel.run(x[:rows], kernel.pack(stored), None), expected[:rows])
