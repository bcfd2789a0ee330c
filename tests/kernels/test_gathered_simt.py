"""The float32 kernel on CUDA cores: its packed weight, its launches, and on a GPU of compute capability 9.0 its products."""

import random
import re

import pytest
import torch
from gathered_weights import draw_gathered
from in_layout import InLayout
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.common.operands import aligned_by_input, aligned_like
from sparsefront_kernels.gathered.simt import (
    KERNEL,
    LAUNCHES,
    MOST_CANDIDATES,
    SPACE,
    WIDTHS,
    SimtLaunch,
    SimtProblem,
    candidates,
    dense_weight,
    launch_gathered_simt,
    pack_for_simt,
    predicted_us,
)
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import chosen_launch
from torch._subclasses.fake_tensor import FakeTensorMode

KERNELS = {layout: InLayout(entry("gathered_simt"), layout) for layout in LAYOUTS}
TILES = (4, 8, 16, 32, 64, 96, 128, 192, 256)
LARGEST = 600
LARGE = SimtProblem(m=4096, k=4096, n=4096, width=32, tiles=128, kept=128 * 2048)
SMALL = SimtProblem(m=256, k=1024, n=1024, width=32, tiles=32, kept=32 * 512)


def rebuilt(packed):
    """The dense weight that the packed weight hold, and how often each output is owned."""
    dense, owned = torch.zeros(packed.n, packed.k), torch.zeros(packed.n, dtype=torch.int64)
    for (first, count), outputs in zip(packed.tiles.tolist(), packed.outputs.long(), strict=True):
        exists, kept = outputs >= 0, packed.kept[first : first + count].long()
        owned[outputs[exists]] += 1
        dense[outputs[exists][:, None], kept[None, :]] = packed.panels[first : first + count, exists].t()
        assert not packed.panels[first : first + count, ~exists].any()
    return dense, owned


class TestTables:
    @pytest.mark.parametrize("seed", range(30))
    def test_hold_the_weight(self, seed):
        torch.manual_seed(seed)
        stored = draw_gathered(random.Random(seed), tile=TILES, largest=LARGEST)
        packed = pack_for_simt(stored)
        dense, owned = rebuilt(packed)
        assert torch.equal(dense, stored.to_dense())
        assert torch.equal(dense_weight(packed), dense)
        assert (owned == 1).all()
        counts = packed.tiles[:, 1]
        assert (counts.diff() <= 0).all() and counts.sum() == len(packed.kept) == len(packed.panels)
        assert packed.panels.is_contiguous() and packed.width in WIDTHS

    @pytest.mark.parametrize(
        ("tile", "width"), [(8, 32), (16, 32), (32, 32), (64, 64), (96, 32), (128, 128), (192, 64), (256, 128)]
    )
    def test_width_follows_the_tile(self, tile, width):
        stored = FORMATS["gathered"].from_dense(torch.randn(300, 9), torch.ones(300, 9, dtype=torch.bool), tile=tile)
        assert pack_for_simt(stored).width == width

    def test_orders_of_outputs(self):
        order = torch.randperm(96)
        mask = torch.zeros(96, 20, dtype=torch.bool)
        mask[order] = (torch.rand(3, 20) < 0.5).repeat_interleave(32, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(96, 20), mask, tile=32, drop_empty_outputs=False, output_order=order
        )
        dense, owned = rebuilt(pack_for_simt(stored))
        assert torch.equal(dense, stored.to_dense()) and (owned == 1).all()

    def test_odd_tiles_are_unsupported(self):
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=24)
        with pytest.raises(ValueError, match="divide 32 or are multiples of it, not tiles of 24 outputs"):
            pack_for_simt(stored)


class TestLaunches:
    def test_space_is_possible(self):
        for width in WIDTHS:
            assert len(SPACE[width]) == len(set(SPACE[width])) > 10
            assert all(launch.possible(width) for launch in SPACE[width])

    @pytest.mark.parametrize(
        ("width", "launch"),
        [
            (32, SimtLaunch(16, 1, 16)),  # more shared memory than there is
            (128, SimtLaunch(16, 2, 2)),  # no warp is left for a second k-slice
            (32, SimtLaunch(12, 1, 2)),
            (32, SimtLaunch(16, 3, 2)),
            (32, SimtLaunch(16, 1, 1)),
            (32, SimtLaunch(16, 1, 2, 9)),
        ],
    )
    def test_impossible(self, width, launch):
        assert not launch.possible(width)

    @pytest.mark.parametrize("problem", [LARGE, SMALL])
    def test_candidates_are_few_and_start_with_the_best_predicted(self, problem):
        chosen = candidates(problem, 132)
        predicted = [predicted_us(problem, launch, 132) for launch in chosen]
        assert 0 < len(chosen) <= MOST_CANDIDATES
        assert predicted == sorted(predicted)
        assert predicted[0] == min(predicted_us(problem, launch, 132) for launch in SPACE[32])

    def test_small_products_are_split(self):
        best = candidates(SMALL, 132)[0]
        assert best.splits * best.warp_split_k > 1
        assert candidates(LARGE, 132)[0].splits == 1

    def test_measured_launches_are_found_again(self, nothing_tuned, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
        packed = pack_for_simt(draw_gathered(random.Random(1), tile=32, largest=LARGEST))
        problem = Problem(253, packed.k, packed.n, torch.float32, "cuda", "feature_major")
        odd = SimtLaunch(8, 4, 2, 7)
        LAUNCHES.remember(packed, problem, odd, 12.345)
        described = SimtProblem(256, packed.k, packed.n, 32, len(packed.tiles), len(packed.kept) + 1)
        assert chosen_launch(LAUNCHES, described, "Some GPU", 132) == odd
        assert chosen_launch(LAUNCHES, described, "Another GPU", 132) == candidates(described, 132)[0]
        assert chosen_launch(LAUNCHES, SMALL, "Some GPU", 132) == candidates(SMALL, 132)[0]

    def test_shipped_launches_are_possible(self):
        for path in (store.Path(store.__file__).parent / "shipped").glob("*.json"):
            kernels = store._read(path)["kernels"]
            for key, entry_ in kernels.get(KERNEL, {"entries": {}})["entries"].items():
                width = int(re.search(r"width=(\d+)", key)[1])
                parameters = {name: value for name, value in entry_.items() if name != "latency_us"}
                assert SimtLaunch(**parameters).possible(width), (path.name, key)


class TestWithoutGPU:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_unsupported_problems(self, layout):
        kernel = KERNELS[layout]
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=24)
        problem = {"m": 8, "k": 8, "n": 48, "device": "cpu", "layout": layout}
        assert "takes float32, not torch.float16" in kernel.unsupported_reason(
            stored, Problem(dtype=torch.float16, **problem)
        )
        full = Problem(dtype=torch.float32, **problem)
        assert "not tiles of 24 outputs" in kernel.unsupported_reason(stored, full)
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=32)
        assert "needs a CUDA device" in kernel.unsupported_reason(stored, full)

    @pytest.mark.parametrize("kind", ["plain", "inside_nan", "transposed"])
    @pytest.mark.parametrize(
        ("dtype", "m", "padded"), [(torch.float32, 12, 12), (torch.float32, 13, 16), (torch.float16, 12, 16)]
    )
    def test_x_reaches_the_kernel_aligned(self, kind, dtype, m, padded, activations):
        x = activations(Problem(m, 24, 1, dtype, "cpu", "feature_major"), kind)
        by_input = aligned_by_input(x, feature_major=True)
        assert (
            by_input.stride(1) == 1 and by_input.data_ptr() % 16 == 0 and by_input.stride(0) * dtype.itemsize % 16 == 0
        )
        assert by_input.shape == (24, padded) and torch.equal(by_input[:, :m], x)
        assert (by_input.data_ptr() == x.data_ptr()) == (kind == "plain" and m == padded)

    def test_residual_reaches_the_kernel_aligned(self):
        target, residual = torch.empty(5, 8), torch.randn(5, 9)[:, 1:]
        copy = aligned_like(target, residual)
        assert copy.data_ptr() % 16 == 0 and torch.equal(copy, residual)
        assert aligned_like(target, copy) is copy
        assert torch.equal(aligned_like(target, residual[:, :5])[:, :5], residual[:, :5])

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_fake_kernel_gives_the_shape(self, layout):
        packed = pack_for_simt(draw_gathered(random.Random(3), tile=64, largest=LARGEST))
        n, k = packed.n, packed.k
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.empty((k, 5) if layout in X_FEATURE_MAJOR else (5, k))
            y = KERNELS[layout].run(x, packed, None)
        assert y.shape == ((n, 5) if layout in Y_FEATURE_MAJOR else (5, n))

    def test_operands_that_do_not_fit(self):
        packed = pack_for_simt(draw_gathered(random.Random(3), tile=64, largest=LARGEST))
        kernel = KERNELS["feature_major"]
        x = torch.randn(packed.k, 4)
        with pytest.raises(ValueError, match=r"x must be \[K, M\]"):
            kernel.run(x.t(), packed, None)
        with pytest.raises(ValueError, match="x is torch.float16"):
            kernel.run(x.half(), packed, None)
        with pytest.raises(ValueError, match="activation 'swish'"):
            kernel.run(x, packed, None, activation="swish")
        with pytest.raises(ValueError, match="the residual must be"):
            kernel.run(x, packed, None, residual=torch.randn(4, packed.n + 1))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("tile", [16, 32, 64, 128])
    def test_every_launch_of_the_space(self, tile, assert_close, poisoned_memory):
        torch.manual_seed(tile)
        mask = (torch.rand(-(-300 // tile), 700, device="cuda") < 0.4).repeat_interleave(tile, 0)[:300]
        stored = FORMATS["gathered"].from_dense(torch.randn(300, 700, device="cuda"), mask, tile=tile)
        packed, bias = pack_for_simt(stored), torch.randn(300, device="cuda")
        x, residual = torch.randn(700, 1036, device="cuda"), torch.randn(300, 1036, device="cuda")
        sums = stored.to_dense().double() @ x.double()
        epilogues = [(None, "none", None), (bias, "none", residual), (bias, "gelu", residual), (None, "relu", None)]
        for index, launch in enumerate(SPACE[packed.width]):
            for stages in {launch.stages, 2}:
                chosen = SimtLaunch(launch.columns, launch.warp_split_k, stages, launch.splits)
                added, activation, plus = epilogues[index % len(epilogues)]
                y = torch.full((300, 1036), torch.nan, device="cuda")
                launch_gathered_simt(x, y, packed, bias=added, activation=activation, residual=plus, launch=chosen)
                plus = None if plus is None else plus.t()
                assert_close(y, with_epilogue(sums.t(), added, activation, plus).t())

    def test_many_inputs(self, assert_close):
        """The longest sums of the benchmark, all inputs kept: float32 rounds 20480 times."""
        stored = FORMATS["gathered"].from_dense(
            torch.randn(64, 20480, device="cuda"), torch.ones(64, 20480, dtype=torch.bool, device="cuda"), tile=32
        )
        x = torch.randn(20480, 512, device="cuda")
        packed, expected = pack_for_simt(stored), stored.to_dense().double() @ x.double()
        for launch in (launch for launch in SPACE[32] if launch.splits in (1, 8)):
            y = torch.full((64, 512), torch.nan, device="cuda")
            launch_gathered_simt(x, y, packed, bias=None, activation="none", residual=None, launch=launch)
            assert_close(y, expected)

    def test_uneven_tiles_and_many_blocks(self, assert_close):
        mask = (torch.rand(96, 3000, device="cuda") < torch.rand(96, 1, device="cuda")).repeat_interleave(32, 0)
        stored = FORMATS["gathered"].from_dense(torch.randn(3072, 3000, device="cuda"), mask, tile=32)
        x = torch.randn(3000, 4096, device="cuda")
        y = KERNELS["feature_major"].run(x, pack_for_simt(stored), None)
        assert_close(y, stored.to_dense().double() @ x.double())

    def test_what_a_tile_prunes_does_not_reach_it(self):
        mask = torch.rand(4, 100, device="cuda") < 0.5
        mask[:, 7] = torch.tensor([True, False, True, False])
        stored = FORMATS["gathered"].from_dense(
            torch.randn(128, 100, device="cuda"), mask.repeat_interleave(32, 0), tile=32
        )
        x = torch.randn(100, 37, device="cuda")
        x[7] = torch.inf
        y = KERNELS["feature_major"].run(x, pack_for_simt(stored), None).view(4, 32, 37)
        assert not y[[0, 2]].isfinite().any() and y[[1, 3]].isfinite().all()

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        mask = (torch.rand(8, 2000, device="cuda") < 0.3).repeat_interleave(64, 0)
        for tile in (32, 64):
            stored = FORMATS["gathered"].from_dense(torch.randn(512, 2000, device="cuda"), mask, tile=tile)
            packed, x = pack_for_simt(stored), torch.randn(2000, 512, device="cuda")
            for launch in SPACE[tile]:
                first = torch.empty(512, 512, device="cuda")
                common = {"bias": None, "activation": "none", "residual": None, "launch": launch}
                launch_gathered_simt(x, first, packed, **common)
                for _ in range(10):
                    again = torch.full_like(first, torch.nan)
                    launch_gathered_simt(x, again, packed, **common)
                    assert torch.equal(first, again), launch
