"""The kernel for few rows: its packed weight multiplied in plain loops; on a GPU every M, launch and layout against float64."""

import copy
import itertools
import random
from dataclasses import replace

import pytest
import torch
from in_layout import InLayout
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.epilogue import ACTIVATIONS, with_epilogue
from sparsefront_kernels.common.launch import was_read_before
from sparsefront_kernels.gathered.small_m import (
    KERNEL,
    KERNEL_ROW_X,
    LAUNCHES,
    PDL_MODES,
    ROW_X_LAUNCHES,
    SPACE,
    SmallMLaunch,
    SmallMProblem,
    candidates,
    dense_weight,
    launch_gathered_small_m,
    pack_for_small_m,
    row_tile_width,
)
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import chosen_launch
from torch._subclasses.fake_tensor import FakeTensorMode

KERNELS = {layout: InLayout(entry("gathered_small_m"), layout) for layout in LAYOUTS}
TILES = [1, 3, 4, 8, 16, 24, 32, 64, 100, 128, 192, 200, 256]


def draw_stored(case, dtype, device="cpu", *, most=600):
    """A weight of random shape, tile, density, order and dropped outputs. case: random.Random."""
    n, k, tile = case.randint(1, most), case.randint(1, most), case.choice(TILES)
    density, dropped = case.choice([0.0, 0.1, 0.3, 0.6, 1.0]), case.choice([0.0, 0.4])
    generator = torch.Generator().manual_seed(case.randint(0, 1000))
    order = torch.randperm(n, generator=generator) if case.random() < 0.3 else torch.arange(n)
    survivors = order[torch.rand(n, generator=generator) >= dropped]
    tiles = -(-len(survivors) // tile)
    share = torch.ones(tiles, 1)
    if density < 1:
        share = density * (0.5 + torch.rand(tiles, 1, generator=generator))
    rows = (torch.rand(tiles, k, generator=generator) < share).repeat_interleave(tile, 0)[: len(survivors)]
    mask = torch.zeros(n, k, dtype=torch.bool)
    if dropped:  # tiles are then formed from what keeps anything
        survivors, rows = survivors[rows.any(dim=1)], rows[rows.any(dim=1)]
        rows = rows[torch.arange(len(rows)) // tile * tile]
    mask[survivors] = rows
    weight = torch.randn(n, k, generator=generator).to(dtype)
    return FORMATS["gathered"].from_dense(
        weight.to(device), mask.to(device), tile=tile, drop_empty_outputs=dropped > 0, output_order=order.to(device)
    )


def product_from_packed(packed, x):
    """Y [N, M] in float64, walking the packed weight in plain loops; each output must be written once."""
    y = torch.full((packed.n, x.shape[1]), torch.nan, dtype=torch.float64)
    for (first, count), outputs in zip(packed.row_tiles.tolist(), packed.outputs, strict=True):
        sums = torch.zeros(packed.width, x.shape[1], dtype=torch.float64)
        own = slice(first, first + count)
        for inputs, chunk in zip((packed.lists[own].int() & 0xFFFF).tolist(), packed.panels[own], strict=True):
            lanes = chunk.view(-1, 32, 8)
            if chunk.dtype == torch.float32:  # two runs of 4 elements a lane, a pair of outputs after the other
                lanes = chunk.view(-1, 2, 32, 2, 2).permute(0, 2, 1, 4, 3).reshape(-1, 32, 8)
            for r in range(8):
                for q in range(4):
                    for element in range(8):
                        i, h = element // 4 * 2 + element % 2, element // 2 % 2
                        k = inputs[4 * q + i]
                        weights = lanes[:, 4 * r + q, element].double()  # of each fragment
                        if k == 0xFFFF:
                            assert not weights.any()
                        else:
                            sums[8 * h + r :: 16] += weights[:, None] * x[k]
        for row, output in enumerate(outputs.tolist()):
            if output >= 0:
                assert y[output].isnan().all()
                y[output] = sums[row]
    return y


class TestTables:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize("seed", range(20))
    def test_they_hold_the_weight(self, seed, dtype):
        stored = draw_stored(random.Random(seed), dtype, most=150)
        x = torch.randn(stored.shape[1], 2, dtype=torch.float64)
        y = product_from_packed(pack_for_small_m(stored), x)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    @pytest.mark.parametrize("seed", range(20))
    def test_the_dense_weight_comes_back(self, seed, dtype):
        stored = draw_stored(random.Random(seed), dtype)
        assert torch.equal(dense_weight(pack_for_small_m(stored)), stored.to_dense())

    def test_inputs_beyond_a_signed_16_bit_number(self):
        mask = torch.zeros(16, 65_535, dtype=torch.bool)
        mask[:, [0, 32_767, 32_768, 65_534]] = True
        stored = FORMATS["gathered"].from_dense(torch.randn(16, 65_535).half(), mask, tile=16)
        x = torch.randn(65_535, 1, dtype=torch.float64)
        torch.testing.assert_close(
            product_from_packed(pack_for_small_m(stored), x), stored.to_dense().double() @ x, rtol=1e-6, atol=1e-6
        )

    @pytest.mark.parametrize(
        ("tile", "width"),
        [(1, 16), (8, 16), (16, 16), (24, 32), (32, 32), (96, 32), (100, 16), (128, 128), (192, 64), (256, 128)],
    )
    def test_row_tiles_are_wide_and_not_padded_much(self, tile, width):
        assert row_tile_width(tile) == width

    def test_equal_row_tiles_are_known_as_such_and_longest_come_first_otherwise(self):
        mask = torch.zeros(256, 96, dtype=torch.bool)
        mask[:, :40] = True
        packed = pack_for_small_m(FORMATS["gathered"].from_dense(torch.randn(256, 96).half(), mask, tile=128))
        assert (packed.chunks_of_each, packed.in_order, packed.row_tiles.tolist()) == (3, True, [[0, 3], [3, 3]])
        assert packed.most_chunks == 3
        mask[128:, :90] = True
        packed = pack_for_small_m(FORMATS["gathered"].from_dense(torch.randn(256, 96).half(), mask, tile=128))
        assert (packed.chunks_of_each, packed.in_order, packed.row_tiles.tolist()) == (-1, False, [[0, 6], [6, 3]])
        assert packed.most_chunks == 6

    def test_row_tiles_that_keep_no_input_come_last_and_have_no_blocks_where_rows_are_few(self):
        mask = torch.zeros(640, 96, dtype=torch.bool)
        mask[128:256, :40] = mask[384:512, :60] = True
        stored = FORMATS["gathered"].from_dense(torch.randn(640, 96).half(), mask, tile=128, drop_empty_outputs=True)
        packed = pack_for_small_m(stored)
        assert packed.kept_row_tiles == 2 and packed.row_tiles[:, 1].tolist() == [4, 3, 0, 0, 0]
        few, many = (SmallMProblem.of(packed, m, x_feature_major=True) for m in (8, 9))
        assert (few.row_tiles, few.pruned, few.amount) == (2, True, 3.5) and " kept=2 chunks=" in few.shape
        assert (many.row_tiles, many.pruned, many.amount) == (5, False, 1.4) and "kept" not in many.shape
        pruned = pack_for_small_m(FORMATS["gathered"].from_dense(stored.to_dense(), mask & False, tile=128))
        assert pruned.panels.numel() == 0 and candidates(SmallMProblem.of(pruned, 3, x_feature_major=True), 132)

    def test_a_weight_is_read_early_only_where_a_call_has_read_it_as_it_is(self):
        packed = pack_for_small_m(draw_stored(random.Random(5), torch.float16))
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

    def test_unsupported_weights(self):
        kept = torch.ones(4, 8, dtype=torch.bool)
        with pytest.raises(ValueError, match="float16, bfloat16 or float32, not torch.float64"):
            pack_for_small_m(FORMATS["gathered"].from_dense(torch.randn(4, 8).double(), kept, tile=4))
        wide = torch.zeros(1, 65_536, dtype=torch.bool)
        with pytest.raises(ValueError, match="takes up to 65535 inputs, not 65536"):
            pack_for_small_m(FORMATS["gathered"].from_dense(torch.zeros(1, 65_536).half(), wide, tile=1))


class TestLaunches:
    def test_every_launch_of_the_space_is_possible_somewhere(self):
        assert len(SPACE) == len(set(SPACE))
        assert all(any(launch.possible(m, 128) for m in (1, 16, 64)) for launch in SPACE)

    @pytest.mark.parametrize(
        ("launch", "m", "width"),
        [
            (SmallMLaunch("lanes", 8, 1, 8, 4), 8, 64),  # wider than the row tile
            (SmallMLaunch("lanes", 8, 1, 8, 4), 64, 128),  # more sums than registers
            (SmallMLaunch("lanes", 8, 1, 2, 4), 8, 128),  # fewer threads than outputs
            (SmallMLaunch("lanes", 3, 1, 8, 4), 8, 128),
            (SmallMLaunch("lanes", 8, 9, 8, 4), 8, 128),
            (SmallMLaunch("lanes", 8, 1, 8, 1), 8, 128),
            (SmallMLaunch("lanes", 8, 1, 8, 8), 8, 128),  # more shared memory than there is
            (SmallMLaunch("lanes", 8, 1, 8, 4, 0, "never"), 8, 128),
            (SmallMLaunch("shared", 1, 1, 4, 4, 4), 8, 128),  # eight warps multiply
            (SmallMLaunch("shared", 1, 1, 8, 4, 0), 8, 128),
            (SmallMLaunch("shared", 1, 1, 8, 8, 8), 8, 128),
            (SmallMLaunch("nobody", 1, 1, 8, 2, 2), 8, 128),
        ],
    )
    def test_impossible_launches(self, launch, m, width):
        assert not launch.possible(m, width)

    @pytest.mark.parametrize("width", [16, 32, 64, 128])
    @pytest.mark.parametrize("m", [1, 8, 9, 32, 64])
    @pytest.mark.parametrize("element_bytes", [2, 4])
    def test_candidates_are_few_and_possible(self, m, width, element_bytes):
        problem = SmallMProblem(m, 4096, 4096, width, 4096 // width, 128 * (4096 // width), 128, element_bytes)
        chosen = candidates(problem, 132)
        assert 0 < len(chosen) <= 18
        assert all(launch.possible(m, width, element_bytes, 128) for launch in chosen)

    @pytest.mark.parametrize(("kept", "chunks"), [(1, 300), (11, 81), (16, 128), (23, 181), (130, 32)])
    @pytest.mark.parametrize(("m", "k"), [(1, 4096), (8, 4096), (2, 20480)])
    def test_with_pruned_outputs_and_few_rows_blocks_run_at_once_where_they_can(self, m, k, kept, chunks):
        problem = SmallMProblem(m, k, 20480, 128, kept, kept * chunks, chunks + 20, 2, True, True)
        chosen, *others = candidates(problem, 132)
        assert len(others) < 18 and all(one.possible(m, 128, 2, chunks + 20) for one in (chosen, *others))
        if problem.chunks * 4096 < 3 << 20:
            return  # as where no output is pruned
        assert (chosen.gather, chosen.fragments) == ("lanes", 8)
        assert kept * chosen.splits <= 264 and (chosen.splits == 8 or 2 * kept * chosen.splits > 132)

    def test_what_was_measured_is_used(self, nothing_tuned, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        packed = pack_for_small_m(
            FORMATS["gathered"].from_dense(torch.randn(64, 48).half(), torch.ones(64, 48, dtype=torch.bool), tile=64)
        )
        odd = SmallMLaunch("lanes", 2, 3, 4, 2, 0, "early")
        problem = Problem(5, 48, 64, torch.float16, "cuda")
        LAUNCHES.remember(packed, problem, odd, 1.234)
        near = SmallMProblem(5, 48, 64, 64, 1, 4, 4)
        assert chosen_launch(LAUNCHES, near, "Some GPU", 132) == odd
        assert chosen_launch(LAUNCHES, SmallMProblem(6, 48, 64, 64, 1, 3, 3), "Some GPU", 132) != odd
        assert chosen_launch(ROW_X_LAUNCHES, near, "Some GPU", 132) != odd

    def test_shipped_tables_hold_possible_launches(self):
        names = (KERNEL, KERNEL_ROW_X)
        for path, name in itertools.product(store.SHIPPED.glob("*.json"), names):
            kernels = store._read(path)["kernels"]
            for key, measured in kernels.get(name, {"entries": {}})["entries"].items():
                sizes = dict(part.split("=") for part in key.split())
                launch = SmallMLaunch(**{name: value for name, value in measured.items() if name != "latency_us"})
                assert launch.possible(*(int(sizes[name]) for name in ("m", "width", "bytes"))), (path.name, key)


class TestEntries:
    def test_rows_of_x_have_launches_of_their_own(self):
        tunables = {layout: kernel.tunable.kernel for layout, kernel in KERNELS.items()}
        by_row = {layout for layout, name in tunables.items() if name == "gathered_small_m_row_x"}
        assert by_row == {"row_major", "row_to_feature"} and len(set(tunables.values())) == 2

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_unsupported_problems(self, layout):
        kernel = KERNELS[layout]
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=24)

        def reason(**changes):
            return kernel.unsupported_reason(
                stored, Problem(**{"m": 8, "k": 8, "n": 48, "dtype": torch.float16, "device": "cpu"} | changes)
            )

        assert reason(m=65, layout=layout) == "takes up to 64 rows of X, not 65"
        assert "not torch.float64" in reason(dtype=torch.float64, layout=layout)
        assert "needs a CUDA device" in reason(layout=layout)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_fake_kernel_gives_the_shape(self, layout):
        stored = FORMATS["gathered"].from_dense(torch.randn(64, 8).half(), torch.ones(64, 8, dtype=torch.bool), tile=64)
        kernel = KERNELS[layout]
        packed = kernel.pack(stored)
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.empty((8, 5) if layout in X_FEATURE_MAJOR else (5, 8), dtype=torch.float16)
            y = kernel.run(x, packed, None)
        assert y.shape == ((64, 5) if layout in Y_FEATURE_MAJOR else (5, 64))

    def test_wrong_operands_are_named(self):
        packed = pack_for_small_m(
            FORMATS["gathered"].from_dense(torch.randn(64, 8).half(), torch.ones(64, 8, dtype=torch.bool), tile=64)
        )
        run = entry("gathered_small_m").run
        with pytest.raises(ValueError, match="x must be"):
            run(torch.ones(3, 9).half(), packed, None)
        with pytest.raises(ValueError, match="the weight torch.float16"):
            run(torch.ones(3, 8), packed, None)
        with pytest.raises(ValueError, match="'swish' is not one of"):
            run(torch.ones(3, 8).half(), packed, None, activation="swish")
        with pytest.raises(ValueError, match="residual"):
            run(torch.ones(3, 8).half(), packed, None, residual=torch.ones(3, 8).half())


def expected_of(stored, x, bias, activation, residual, layout):
    """Y in float64, in the layout's order."""
    rows = x.double().t() if layout in X_FEATURE_MAJOR else x.double()
    wide = None if residual is None else residual.double()
    wide = wide.t() if wide is not None and layout in Y_FEATURE_MAJOR else wide
    sums = rows @ stored.to_dense().double().t()
    y = with_epilogue(sums, None if bias is None else bias.double(), activation, wide)
    return y.t() if layout in Y_FEATURE_MAJOR else y


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("seed", range(128))
    def test_random_problems(self, seed, activations, assert_close, poisoned_memory):
        """Every M from 1 to 64, twice, in four layouts."""
        torch.manual_seed(seed)
        case, m = random.Random(seed), seed % 64 + 1
        dtype = case.choice([torch.float16, torch.bfloat16, torch.float32])
        stored = draw_stored(case, dtype, "cuda", most=900)
        n, k = stored.shape
        bias = case.choice([None, torch.randn(n, device="cuda"), torch.randn(n, device="cuda", dtype=dtype)])
        activation, with_residual = case.choice(list(ACTIVATIONS)), case.random() < 0.5
        for layout, kernel in KERNELS.items():
            problem = Problem(m, k, n, dtype, "cuda", layout)
            x = activations(problem, case.choice(["plain", "inside_nan", "transposed"]))
            residual = torch.randn(problem.y_shape, device="cuda").to(dtype) if with_residual else None
            with poisoned_memory():
                y = kernel.run(x, kernel.pack(stored), bias, activation=activation, residual=residual)
            assert_close(y, expected_of(stored, x, bias, activation, residual, layout))

    @pytest.mark.parametrize("tile", [8, 16, 32, 64, 128, 192])
    @pytest.mark.parametrize("m", [1, 8, 16, 32, 64])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
    def test_every_launch_of_the_space(self, m, tile, dtype, assert_close):
        """Twice each: a race would show as a result that changes."""
        torch.manual_seed(tile)
        mask = (torch.rand(-(-640 // tile), 1700, device="cuda") < 0.4).repeat_interleave(tile, 0)[:640]
        stored = FORMATS["gathered"].from_dense(torch.randn(640, 1700, device="cuda", dtype=dtype), mask, tile=tile)
        packed, bias = pack_for_small_m(stored), torch.randn(640, device="cuda")
        x = torch.randn(1700, m, device="cuda", dtype=dtype).t()
        expected = x.double() @ stored.to_dense().double().t() + bias.double()
        for number, launch in enumerate(SPACE):
            chosen = replace(launch, pdl=PDL_MODES[number % len(PDL_MODES)])
            if not chosen.possible(m, packed.width, dtype.itemsize, packed.most_chunks):
                continue
            first, second = (torch.full((m, 640), torch.nan, device="cuda", dtype=dtype) for _ in range(2))
            for y in (first, second):
                launch_gathered_small_m(x, y, packed, bias=bias, activation="none", residual=None, launch=chosen)
            assert_close(first, expected)
            assert torch.equal(first, second), chosen

    def test_kernels_that_follow_one_another_wait(self, assert_close):
        """Each product reads what the one before wrote; started early, it must not read too soon."""
        weights = [torch.randn(2048, 2048, device="cuda", dtype=torch.float16) / 20 for _ in range(6)]
        mask = (torch.rand(16, 2048, device="cuda") < 0.2).repeat_interleave(128, 0)
        stored = [FORMATS["gathered"].from_dense(weight, mask, tile=128) for weight in weights]
        for layout in ("row_major", "feature_major"):
            kernel = KERNELS[layout]
            packed = [kernel.pack(one) for one in stored]
            for m in (3, 24):
                for _ in range(5):
                    x = torch.randn((m, 2048) if layout == "row_major" else (2048, m), device="cuda").half()
                    y, expected = x, x.double()
                    for one in stored:
                        dense = one.to_dense().double()
                        expected = expected @ dense.t() if layout == "row_major" else dense @ expected
                        expected = expected.half().double()
                    for one in packed:
                        y = kernel.run(y, one, None)
                    assert torch.linalg.norm(y.double() - expected) <= 2e-3 * torch.linalg.norm(expected)

    def test_a_weight_that_changes_between_calls_is_read_anew(self, assert_close):
        stored, other = (draw_stored(random.Random(17), torch.float16, "cuda") for _ in range(2))
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

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_gradients(self, layout):
        stored = draw_stored(random.Random(13), torch.float32, "cuda")
        kernel, (n, k) = KERNELS[layout], stored.shape
        x = torch.randn((k, 12) if layout in X_FEATURE_MAJOR else (12, k), device="cuda", requires_grad=True)
        bias = torch.randn(n, device="cuda", requires_grad=True)
        y = kernel.run(x, kernel.pack(stored), bias, activation="gelu")
        dy = torch.randn_like(y)
        y.backward(dy)
        wide_x, wide_bias = (t.detach().double().requires_grad_() for t in (x, bias))
        expected_of(stored, wide_x, wide_bias, "gelu", None, layout).backward(dy.double())
        torch.testing.assert_close(x.grad.double(), wide_x.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(bias.grad.double(), wide_bias.grad, rtol=1e-4, atol=1e-4)

    def test_any_strides_of_x(self, assert_close, monkeypatch):
        """From 2**31 on, strides cost a copy of X."""
        stored = draw_stored(random.Random(11), torch.float16, "cuda")
        n, k = stored.shape
        wide = torch.randn(7 * k, 3 * 20, device="cuda", dtype=torch.float16)
        x = wide[::7, ::3].t()  # [20, K]
        kernel = entry("gathered_small_m")
        expected = x.double() @ stored.to_dense().double().t()
        assert_close(kernel.run(x, kernel.pack(stored), None), expected)
        assert_close(kernel.run(x[:5], kernel.pack(stored), None), expected[:5])
