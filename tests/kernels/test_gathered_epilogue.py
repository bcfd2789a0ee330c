"""Bias, activation and residual inside the gathered kernels, in every layout, against float64 on poisoned memory."""

import pytest
import torch
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90

FUSING = [kernel.name for kernel in every_layout() if kernel.family == "gathered" and kernel.fuses_epilogue]
TRITON = [name for name in FUSING if name.startswith("gathered_triton")]


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_pass_as_in_pytorch(name, activation, device):
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
