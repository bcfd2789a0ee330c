"""Bias, activation and residual inside the gathered kernels, in every layout, against float64 on poisoned memory."""

import pytest
import torch
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.epilogue import ACTIVATIONS

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
