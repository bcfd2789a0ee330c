"""The float32 kernel of narrow tiles: its packed weight, its launches, and on a GPU of compute capability 9.0 its products."""

import random

import pytest
import torch
from gathered_weights import draw_gathered
from in_layout import InLayout
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.bench.families import random_groups
from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.gathered.indexed import (
    HEADER,
    KERNEL,
    LAUNCHES,
    LIST_OUTPUTS,
    LISTS,
    MOST_STEPS,
    OCTET,
    SPACE,
    WIDTH,
    IndexedLaunch,
    IndexedProblem,
    candidates,
    dense_weight,
    launch_gathered_indexed,
    pack_for_indexed,
    predicted_us,
)
from sparsefront_kernels.problem import LAYOUTS
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import chosen_launch

KERNELS = {layout: InLayout(entry("gathered_indexed"), layout) for layout in LAYOUTS}
STORED = ("panels", "kept", "starts", "row_indices", "tiles", "outputs")
TILES = (1, 2, 4, 8, 16)
LARGEST = 400


def balanced(n, k, kept, m, tile, device="cpu"):
    mask = random_groups(n // tile, k, kept, m, torch.device(device)).repeat_interleave(tile, 0)
    weight = torch.randn(n, k, device=device)
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=False)


def read_by_the_kernel(packed):
    """The dense weight as threads read it, and how often each output is owned.

    A warp has 32 outputs; a lane those of list `lane / 8`, 4 from `lane / 8 · 4` on and 4 from 16 further on.
    """
    dense, owned = torch.zeros(packed.n, packed.k), torch.zeros(packed.n, dtype=torch.int64)
    for (first, count), outputs in zip(packed.tiles.tolist(), packed.outputs.long(), strict=True):
        owned[outputs[outputs >= 0]] += 1
        for stage in range(first, first + count):
            (row, step), (last_row, last_step) = packed.starts[stage : stage + 2].tolist()
            rows, steps = packed.kept[row:last_row].long(), last_step - step
            block = packed.row_indices[16 * (stage + step) :][: 16 + 16 * steps]
            assert 0 < len(rows) <= 64 and 0 < steps <= packed.most_steps and steps % 8 == 0
            assert block[:4].view(torch.int32).item() == steps // 8 and (rows.diff() > 0).all()
            for warp, group in ((warp, group) for warp in range(4) for group in range(4)):
                indices = block[16:].view(steps // 8, 16, 8)[:, warp * 4 + group].flatten().long()
                slots = warp * 32 + group * 4 + torch.tensor([0, 1, 2, 3, 16, 17, 18, 19])
                own = outputs[slots]
                weights = packed.panels[step:last_step][:, slots]
                assert not weights[:, own < 0].any()
                here = own >= 0
                target, inputs = own[here][None].expand(steps, -1), rows[indices][:, None].expand(-1, int(here.sum()))
                dense.index_put_((target, inputs), weights[:, here], accumulate=True)
    return dense, owned


class TestPackedWeight:
    @pytest.mark.parametrize("seed", range(30))
    def test_holds_the_weight(self, seed):
        torch.manual_seed(seed)
        stored = draw_gathered(random.Random(seed), tile=TILES, largest=LARGEST)
        packed = pack_for_indexed(stored)
        dense, owned = read_by_the_kernel(packed)
        assert torch.equal(dense, stored.to_dense()) and (owned == 1).all()
        assert torch.equal(dense_weight(packed), dense)
        assert packed.most_steps in (8, 16, 24, 32) and packed.panels.shape[1] == WIDTH
        assert all(getattr(packed, name).is_contiguous() for name in STORED)
        bounds = packed.starts[:, 1][torch.cat([packed.tiles[:, 0], packed.tiles.sum(1)[-1:]]).long()]
        assert (bounds.diff().diff() <= 0).all(), "long tiles do not start last"

    @pytest.mark.parametrize("kept", [16, 12, 8, 4])
    @pytest.mark.parametrize("tile", [8, 16])
    def test_balanced_vectors_take_no_step_for_nothing(self, tile, kept):
        """n of every 32: a window of 64 holds 2n of every list."""
        packed = pack_for_indexed(balanced(256, 320, kept, 32, tile))
        assert len(packed.panels) == 2 * (320 // 64) * 2 * kept and packed.most_steps == 2 * kept
        rows = packed.starts[:, 0].diff()
        assert (rows <= 64).all() and (rows >= 2 * kept).all(), "only rows that some list keeps"

    def test_lists_of_like_length_share_a_tile(self):
        mask = torch.zeros(32, 64, dtype=torch.bool)
        mask[::2], mask[1::2, ::8] = True, True
        stored = FORMATS["gathered"].from_dense(
            torch.randn(256, 64), mask.repeat_interleave(8, 0), tile=8, drop_empty_outputs=False
        )
        packed = pack_for_indexed(stored)
        assert len(packed.panels) == 64 + 8
        assert torch.equal(read_by_the_kernel(packed)[0], stored.to_dense())

    def test_dense_windows_are_two_stages(self):
        packed = pack_for_indexed(balanced(128, 64, 1, 1, 8))
        assert packed.starts.tolist() == [[0, 0], [32, 32], [64, 64]] and packed.most_steps == MOST_STEPS

    def test_orders_of_outputs(self):
        order = torch.randperm(96)
        mask = torch.zeros(96, 20, dtype=torch.bool)
        mask[order] = (torch.rand(12, 20) < 0.5).repeat_interleave(8, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(96, 20), mask, tile=8, drop_empty_outputs=False, output_order=order
        )
        dense, owned = read_by_the_kernel(pack_for_indexed(stored))
        assert torch.equal(dense, stored.to_dense()) and (owned == 1).all()

    def test_constants_are_the_kernels(self):
        from sparsefront_kernels.cuda_library import SOURCES

        text = SOURCES["gathered_indexed"].read_text()
        for name, value in {"WIDTH": WIDTH, "LISTS": LISTS, "WINDOW_ROWS": 64, "OCTET": OCTET}.items():
            assert f"constexpr int {name} = {value};" in text
        assert "X_BYTES + 16 + most_steps * STEP_BYTES" in text and (HEADER, LIST_OUTPUTS) == (16, 8)

    @pytest.mark.parametrize("tile", [12, 24, 32, 64])
    def test_other_tiles_are_unsupported(self, tile):
        stored = FORMATS["gathered"].from_dense(torch.randn(192, 8), torch.ones(192, 8, dtype=torch.bool), tile=tile)
        with pytest.raises(ValueError, match=f"takes tiles of 1, 2, 4, 8 or 16 outputs, not of {tile}"):
            pack_for_indexed(stored)


class TestLaunches:
    def test_space_is_possible(self):
        assert len(SPACE) == len(set(SPACE)) == 14
        for most_steps in (8, 16, 24, 32):
            assert all(launch.possible(most_steps) for launch in SPACE)
        assert not IndexedLaunch(12).possible(8) and not IndexedLaunch(16, 9).possible(8)
        assert not IndexedLaunch(16).possible(128), "no room for two stages"

    def test_stages_fill_shared_memory(self):
        assert [IndexedLaunch(16).stages(steps) for steps in (8, 16, 32)] == [3, 2, 2]
        assert [IndexedLaunch(8).stages(steps) for steps in (8, 16, 32)] == [3, 3, 2]

    def test_candidates_start_with_the_best_predicted(self):
        small = IndexedProblem(m=256, k=1024, n=1024, tiles=8, steps=8 * 512)
        large = IndexedProblem(m=4096, k=4096, n=4096, tiles=32, steps=32 * 2048)
        for problem in (small, large):
            predicted = [predicted_us(problem, launch, 132) for launch in candidates(problem, 132)]
            assert predicted == sorted(predicted) and len(predicted) == len(SPACE)
        assert candidates(small, 132)[0].splits > 1 and candidates(large, 132)[0].splits == 1

    def test_measured_launches_are_found_again(self, nothing_tuned, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
        packed = pack_for_indexed(draw_gathered(random.Random(1), tile=8, largest=LARGEST))
        problem = Problem(253, packed.k, packed.n, torch.float32, "cuda", "feature_major")
        odd = IndexedLaunch(8, 5)
        LAUNCHES.remember(packed, problem, odd, 12.345)
        described = IndexedProblem(256, packed.k, packed.n, len(packed.tiles), len(packed.panels) + 8)
        assert chosen_launch(LAUNCHES, described, "Some GPU", 132) == odd
        assert chosen_launch(LAUNCHES, described, "Another GPU", 132) == candidates(described, 132)[0]

    def test_shipped_launches_are_possible(self):
        for path in (store.Path(store.__file__).parent / "shipped").glob("*.json"):
            for entry_ in store._read(path)["kernels"].get(KERNEL, {"entries": {}})["entries"].values():
                assert IndexedLaunch(entry_["columns"], entry_["splits"]) in SPACE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unsupported_problems(layout):
    kernel = KERNELS[layout]
    problem = {"m": 8, "k": 8, "n": 48, "device": "cpu", "layout": layout}
    every = torch.ones(48, 8, dtype=torch.bool)
    wide, narrow = (FORMATS["gathered"].from_dense(torch.randn(48, 8), every, tile=tile) for tile in (32, 16))
    full = Problem(dtype=torch.float32, **problem)
    assert "takes float32, not torch.float16" in kernel.unsupported_reason(
        narrow, Problem(dtype=torch.float16, **problem)
    )
    assert "not of 32" in kernel.unsupported_reason(wide, full)
    assert "needs a CUDA device" in kernel.unsupported_reason(narrow, full)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("tile", TILES)
    @pytest.mark.parametrize("density", [0.1, 0.4, 1.0])
    def test_every_launch_of_the_space(self, tile, density, assert_close, poisoned_memory):
        torch.manual_seed(tile)
        mask = (torch.rand(-(-300 // tile), 700, device="cuda") < density).repeat_interleave(tile, 0)[:300]
        stored = FORMATS["gathered"].from_dense(torch.randn(300, 700, device="cuda"), mask, tile=tile)
        packed, bias = pack_for_indexed(stored), torch.randn(300, device="cuda")
        x, residual = torch.randn(700, 1036, device="cuda"), torch.randn(300, 1036, device="cuda")
        sums = stored.to_dense().double() @ x.double()
        epilogues = [(None, "none", None), (bias, "none", residual), (bias, "gelu", residual), (None, "relu", None)]
        for launch in SPACE:
            for added, activation, plus in epilogues:
                y = torch.full((300, 1036), torch.nan, device="cuda")
                launch_gathered_indexed(x, y, packed, bias=added, activation=activation, residual=plus, launch=launch)
                plus = None if plus is None else plus.t()
                assert_close(y, with_epilogue(sums.t(), added, activation, plus).t())

    def test_many_inputs(self, assert_close):
        """The longest sums of the benchmark, half of the inputs kept."""
        stored = balanced(256, 20480, 16, 32, 8, "cuda")
        x = torch.randn(20480, 512, device="cuda")
        packed, expected = pack_for_indexed(stored), stored.to_dense().double() @ x.double()
        for launch in SPACE:
            y = torch.full((256, 512), torch.nan, device="cuda")
            launch_gathered_indexed(x, y, packed, bias=None, activation="none", residual=None, launch=launch)
            assert_close(y, expected)

    def test_uneven_tiles_and_many_blocks(self, assert_close):
        mask = (torch.rand(384, 3000, device="cuda") < torch.rand(384, 1, device="cuda")).repeat_interleave(8, 0)
        stored = FORMATS["gathered"].from_dense(torch.randn(3072, 3000, device="cuda"), mask, tile=8)
        x = torch.randn(3000, 4096, device="cuda")
        y = KERNELS["feature_major"].run(x, pack_for_indexed(stored), None)
        assert_close(y, stored.to_dense().double() @ x.double())

    @pytest.mark.parametrize("m", [1, 37, 130])
    def test_few_and_odd_rows(self, m, assert_close):
        for layout in LAYOUTS:
            stored = balanced(256, 384, 8, 32, 16, "cuda")
            x = torch.randn(m, 384, device="cuda")
            given = x.t().contiguous() if layout.startswith("feature") else x
            y = KERNELS[layout].run(given, pack_for_indexed(stored), None)
            expected = x.double() @ stored.to_dense().double().t()
            assert_close(y, expected if layout in ("row_major", "feature_to_row") else expected.t())

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        for kept in (4, 16):
            packed = pack_for_indexed(balanced(512, 2048, kept, 32, 8, "cuda"))
            x = torch.randn(2048, 512, device="cuda")
            for launch in SPACE:
                first = torch.empty(512, 512, device="cuda")
                common = {"bias": None, "activation": "none", "residual": None, "launch": launch}
                launch_gathered_indexed(x, first, packed, **common)
                for _ in range(10):
                    again = torch.full_like(first, torch.nan)
                    launch_gathered_indexed(x, again, packed, **common)
                    assert torch.equal(first, again), launch
