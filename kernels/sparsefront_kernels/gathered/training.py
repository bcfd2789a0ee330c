"""A Linear with a tile-wise weight for training: whole outputs are skipped, and the optimizer sees only kept weights.

    Y = X · Wᵀ + bias      dX = dY · W      dW = dYᵀ · X of kept weights

W is rebuilt dense in each step without the outputs that keep nothing, so all three products are cuBLAS's and smaller by the
fraction of pruned outputs: half as large at 75 %, which prunes half of the outputs. Tiles overlap in their inputs, so dX has no
deterministic sparse product. The parameter has the kept weights only, and so have its gradient, the optimizer's state and the
exchange between ranks. Only `change` changes which weights are kept. Plain PyTorch, also on a CPU.
"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TrainableTilesLinear(nn.Module):
    """A drop-in nn.Linear, [..., K] -> [..., N], that stores and trains only kept weights.

    Computes in autocast's dtype if enabled, else in the input's. Works in compiled and CUDA graphs.

    Args:
        weight: [N, K].
        mask: bool [N, K], True = keep; any.
        bias: [N] or None; an existing parameter is used directly.
    Attributes:
        weight: [1, kept], row by row.
    """

    outputs: Tensor
    columns: Tensor
    places: Tensor

    def __init__(self, weight: Tensor, mask: Tensor, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        mask = mask.to(weight.device)
        self.weight = nn.Parameter(weight.detach()[mask][None])
        self.bias = bias
        self._keep(mask)

    def _keep(self, mask: Tensor) -> None:
        outputs = mask.any(dim=1).nonzero().squeeze(1)
        columns = torch.full((self.out_features,), len(outputs), device=mask.device)
        columns[outputs] = torch.arange(len(outputs), device=mask.device)
        places = mask[outputs].flatten().nonzero().squeeze(1)
        # 32 bits: 64-bit positions would take as much memory as the optimizer's state
        for name, buffer in (("outputs", outputs), ("columns", columns), ("places", places.to(torch.int32))):
            self.register_buffer(name, buffer, persistent=False)

    @torch.no_grad()
    def change(self, mask: Tensor, *others: Tensor) -> list[Tensor]:
        """Change which weights are kept; the parameter stays the same object, without a gradient.

        Args:
            mask: bool [N, K], True = keep. Regrown weights start at zero.
            others: tensors shaped like `weight`, such as optimizer state.
        Returns:
            `others`, rearranged like `weight`.
        """
        mask = mask.to(self.weight.device)
        weight, *like = [self._dense(values)[mask][None] for values in (self.weight, *others)]
        self._keep(mask)
        self.weight.data, self.weight.grad = weight, None
        return like

    @classmethod
    def from_masked(cls, linear: nn.Linear, mask: Tensor) -> Self:
        """Convert a masked layer.

        Args:
            mask: bool [N, K], True = keep.
        """
        return cls(linear.weight, mask, linear.bias)

    def dense_weight(self) -> Tensor:
        """[N, K], with zeros where W is pruned."""
        return self._dense(self.weight.detach())

    def _dense(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.out_features, self.in_features).index_copy(0, self.outputs, self._rebuilt(values))

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named `input`, as in nn.Linear."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        rows = input.reshape(-1, self.in_features).to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        weight = self._rebuilt(self.weight.to(dtype))
        if len(self.outputs) == self.out_features:
            y = F.linear(rows, weight, bias)
        else:
            y = _Spread.apply(F.linear(rows, weight), self.outputs, self.columns)
            y = y if bias is None else y + bias
        return y.reshape(*input.shape[:-1], self.out_features)

    def _rebuilt(self, values: Tensor) -> Tensor:
        """W without pruned outputs, [outputs, K], from values [1, kept]."""
        flat = values.new_zeros(len(self.outputs) * self.in_features)
        return flat.scatter(0, self.places.long(), values[0]).view(-1, self.in_features)

    def extra_repr(self) -> str:
        shape = f"n={self.out_features}, k={self.in_features}"
        return f"{shape}, kept={self.weight.shape[1]} in {len(self.outputs)} outputs"


class _Spread(torch.autograd.Function):
    """Expand columns of kept outputs to all outputs, zero if pruned; both passes read by index and write in order."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, outputs: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return F.pad(kept, (0, 1)).index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (outputs,) = ctx.saved_tensors
        return dy.index_select(1, outputs), None, None
