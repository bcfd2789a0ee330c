"""Bias, activation and residual inside the gathered kernels, in every layout, against float64 on poisoned memory."""

import random

import pytest
import torch
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.common.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.sm90 import SPACE, launch_gathered_sm90
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90

KINDS = ["plain", "inside_nan", "transposed"]
FUSING = [kernel.name for kernel in every_layout() if kernel.family == "gathered" and kernel.fuses_epilogue]
TRITON = [name for name in FUSING if name.startswith("gathered_triton")]
HOPPER = [name for name in FUSING if name.startswith("gathered_sm90")]


def draw_stored(case: random.Random, dtype: torch.dtype, device: str, *, largest: int):
    """A weight of random shape, tile, density and dropped outputs. Half of them keep all outputs, a multiple of 8."""
    n, k, tile = case.randint(1, largest), case.randint(1, largest), case.choice([4, 8, 16, 32, 64, 128, 192])
    dropped = case.choice([0.0, 0.0, 0.4])
    if dropped == 0.0 and case.random() < 0.7:
        n = -(-n // 8) * 8
    survivors = (torch.rand(n, device=device) >= dropped).nonzero().flatten()
    tiles = -(-len(survivors) // tile)
    share = case.choice([0.0, 0.1, 0.4, 1.0]) * (0.5 + torch.rand(tiles, 1, device=device))
    mask = torch.zeros(n, k, dtype=torch.bool, device=device)
    mask[survivors] = (torch.rand(tiles, k, device=device) < share).repeat_interleave(tile, 0)[: len(survivors)]
    weight = torch.randn(n, k, device=device).to(dtype)
    order = torch.randperm(n, device=device) if case.random() < 0.2 else None
    if order is not None:  # tiles of outputs in another order
        mask = mask[order.argsort()]
    return FORMATS["gathered"].from_dense(
        weight, mask, tile=tile, drop_empty_outputs=dropped > 0, output_order=order, fill=True
    )


@pytest.fixture
def check(activations, expected_product, assert_close, poisoned_memory):
    """(name, case, format, packed, m, activation): the kernel on random operands; some problems lack bias or residual."""

    def run(name, case, stored, packed, m, activation):
        kernel, (n, k), device = in_layout(name), stored.shape, stored.device
        problem = Problem(m, k, n, stored.dtype, device, kernel.layout)
        x = activations(problem, case.choice(KINDS))
        residual = activations(problem, case.choice(KINDS), problem.y_shape) if case.random() < 0.6 else None
        bias = case.choice([None, torch.randn(n, device=device), torch.randn(n, device=device).to(stored.dtype)])
        with poisoned_memory():
            y = kernel.run(x, packed, bias, activation=activation, residual=residual)
        expected = expected_product(x, stored, bias, kernel.layout, activation=activation, residual=residual)
        assert_close(y, expected)

    return run


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["gathered_reference", *TRITON])
def test_random_problems(name, seed, check):
    torch.manual_seed(seed)
    case, kernel = random.Random(seed), in_layout(name)
    dtype = case.choice([torch.float32, torch.float16])
    stored = draw_stored(case, dtype, "cpu", largest=150)
    m = case.choice([1, 7, 8, 13, 40])
    if reason := kernel.unsupported_reason(
        stored, Problem(m, stored.shape[1], stored.shape[0], dtype, "cpu", kernel.layout)
    ):
        pytest.skip(reason)
    check(name, case, stored, kernel.pack(stored), m, list(ACTIVATIONS)[seed % len(ACTIVATIONS)])


@pytest.mark.parametrize("name", ["gathered_reference", "gathered_triton", "gathered_triton_feature_major"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"activation": "swish"}, "'swish' is not one of none, relu, gelu, gelu_tanh"),
        ({"residual": torch.ones(3, 9)}, r"the residual must be torch.float32 \[.*\] as the output, not .* \[3, 9\]"),
        ({"residual": torch.ones(5, 5).half()}, "the residual must be torch.float32 .* not torch.float16"),
    ],
    ids=["activation", "shape", "dtype"],
)
def test_what_does_not_fit_is_rejected(name, keywords, message, device):
    stored = FORMATS["gathered"].from_dense(torch.randn(5, 5), torch.ones(5, 5, dtype=torch.bool), tile=4).to(device)
    moved = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in keywords.items()}
    with pytest.raises(ValueError, match=message):
        in_layout(name).run(torch.ones(5, 5, device=device), in_layout(name).pack(stored), None, **moved)


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_and_nan_pass_as_in_pytorch(name, activation, device):
    """Through an activation an infinity or NaN of X becomes what PyTorch makes of it in float64."""
    stored = FORMATS["gathered"].from_dense(torch.ones(4, 1), torch.ones(4, 1, dtype=torch.bool), tile=4).to(device)
    kernel = in_layout(name)
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, -3e38, 3e38, 0.0], device=device)
    x = x.view(Problem(6, 1, 4, x.dtype, device, kernel.layout).x_shape)
    plain, fused = (kernel.run(x, kernel.pack(stored), None, activation=code) for code in ("none", activation))
    torch.testing.assert_close(fused, ACTIVATIONS[activation](plain.double()).float(), equal_nan=True)


class TestWholeRuns:
    """Which outputs the Hopper kernel can write 16 bytes at a time into rows of Y."""

    @pytest.mark.parametrize(
        ("n", "tile", "order", "whole"),
        [
            (256, 128, None, True),
            (200, 128, None, True),
            (200, 16, None, True),
            (204, 64, None, False),  # the last run has four outputs
            (5, 64, None, False),
            (128, 64, torch.arange(128).roll(8), True),
            (128, 64, torch.arange(128).roll(4), False),
            (128, 64, torch.arange(128).flip(0), False),
        ],
    )
    def test_by_order_of_outputs(self, n, tile, order, whole):
        stored = FORMATS["gathered"].from_dense(
            torch.randn(n, 8), torch.ones(n, 8, dtype=torch.bool), tile=tile, output_order=order
        )
        assert pack_for_sm90(stored).whole_runs is whole

    @pytest.mark.parametrize(("dropped", "whole"), [(range(8, 24), True), (range(10, 12), False), (range(256), True)])
    def test_by_dropped_outputs(self, dropped, whole):
        mask = torch.ones(256, 8, dtype=torch.bool)
        mask[list(dropped)] = False
        stored = FORMATS["gathered"].from_dense(torch.randn(256, 8), mask, tile=64)
        assert pack_for_sm90(stored).whole_runs is whole


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnHopper:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("seed", range(200))
    def test_random_problems(self, seed, dtype, check):
        torch.manual_seed(seed)
        case = random.Random(seed)
        stored = draw_stored(case, dtype, "cuda", largest=600)
        packed = pack_for_sm90(stored)
        m = case.choice([1, 2, 7, 8, 13, 64, 100, 127, 256, 333])
        for name in HOPPER:
            check(name, case, stored, packed, m, case.choice(list(ACTIVATIONS)))

    @pytest.mark.parametrize("tile", [32, 64, 128])
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_every_launch_of_the_space(self, tile, activation, assert_close, expected_product):
        """Rows and columns of Y, with residual and without; the last rows of a row-major Y are cut off."""
        torch.manual_seed(tile)
        mask = (torch.rand(-(-640 // tile), 700, device="cuda") < 0.4).repeat_interleave(tile, 0)[:640]
        stored = FORMATS["gathered"].from_dense(
            torch.randn(640, 700, device="cuda", dtype=torch.float16), mask, tile=tile
        )
        packed = pack_for_sm90(stored)
        x = torch.randn(700, 1032, device="cuda", dtype=torch.float16)
        bias = torch.randn(640, device="cuda")
        for shape, layout in (((640, 1032), "feature_major"), ((1029, 640), "feature_to_row")):
            row_major = layout == "feature_to_row"
            used = x[:, :1029] if row_major else x
            for residual in (None, torch.randn(shape, device="cuda", dtype=torch.float16)):
                expected = expected_product(used, stored, bias, layout, activation=activation, residual=residual)
                for launch in SPACE:
                    y = torch.full(shape, torch.nan, device="cuda", dtype=torch.float16)
                    launch_gathered_sm90(
                        x,
                        y,
                        packed,
                        bias=bias,
                        launch=launch,
                        y_row_major=row_major,
                        activation=activation,
                        residual=residual,
                    )
                    assert_close(y, expected)

    @pytest.mark.parametrize("name", HOPPER)
    def test_more_than_two_to_the_31_elements(self, name, assert_close):
        """Of X, of Y and of the residual."""
        kernel, n, k = in_layout(name), 4096, 4096
        mask = torch.zeros(n, k, dtype=torch.bool, device="cuda")
        mask[:, ::64] = True
        stored = FORMATS["gathered"].from_dense(torch.randn(n, k, device="cuda", dtype=torch.float16), mask, tile=128)
        m = 2**19 + 64
        problem = Problem(m, k, n, torch.float16, "cuda", kernel.layout)
        if torch.cuda.mem_get_info()[0] < 6 * 2 * m * k:
            pytest.skip("not enough GPU memory")
        x, residual = (
            torch.empty(s, device="cuda", dtype=torch.float16).normal_() for s in (problem.x_shape, problem.y_shape)
        )
        y = kernel.run(x, pack_for_sm90(stored), None, activation="relu", residual=residual)
        x, residual, y = (part if part.shape[0] == m else part.t() for part in (x, residual, y))
        for rows in (slice(0, 64), slice(-64, None)):
            sums = x[rows].double() @ stored.to_dense().double().t()
            assert_close(y[rows], torch.relu(sums) + residual[rows].double())
