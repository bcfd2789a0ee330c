"""A Linear whose weight keeps tiles, for training: whole outputs are skipped, and the optimizer sees kept weights alone.

    Y = X · Wᵀ + bias      dX = dY · W      dW = dYᵀ · X of kept weights

W is rebuilt in each step, dense but without the outputs that keep nothing, so that all three products are cuBLAS's and as much
smaller as outputs are pruned: half as large at 75 %, where half of the outputs go. Tiles overlap in their inputs, which is why
dX has no deterministic product of its own. The parameter is what is kept: its gradient, the optimizer's state and what ranks
exchange are as small. Which weights are kept never changes. It is PyTorch throughout, and the same on a CPU.
"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TrainableTilesLinear(nn.Module):
    """Takes [..., K] and gives [..., N], as nn.Linear does; only kept weights are stored and trained.

    Under autocast it multiplies in autocast's dtype, else in that of the input. It works in compiled graphs and CUDA graphs.

    Args:
        weight: [N, K].
        mask: bool [N, K], True = keep; any.
        bias: [N] or None; a parameter stays the same object.
    Attributes:
        weight: [1, kept], row after row.
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
        # 32 bits: with 64 the places would take as much memory as the optimizer's state
        for name, buffer in (("outputs", outputs), ("columns", columns), ("places", places.to(torch.int32))):
            self.register_buffer(name, buffer, persistent=False)

    @torch.no_grad()
    def change(self, mask: Tensor, *others: Tensor) -> list[Tensor]:
        """Keep other weights from now on; the parameter stays the same object, and has no gradient.

        Args:
            mask: bool [N, K], True = keep. A weight that was pruned so far begins at zero.
            others: like `weight`, such as what an optimizer keeps for it.
        Returns:
            these as they then are like `weight`.
        """
        mask = mask.to(self.weight.device)
        weight, *like = [self._dense(values)[mask][None] for values in (self.weight, *others)]
        self._keep(mask)
        self.weight.data, self.weight.grad = weight, None
        return like

    @classmethod
    def from_masked(cls, linear: nn.Linear, mask: Tensor) -> Self:
        """The same layer, trained by what the mask keeps.

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
        """`input` is called as nn.Linear calls it."""
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
        """W without the outputs that keep nothing, [outputs, K], from values [1, kept]."""
        flat = values.new_zeros(len(self.outputs) * self.in_features)
        return flat.scatter(0, self.places.long(), values[0]).view(-1, self.in_features)

    def extra_repr(self) -> str:
        shape = f"n={self.out_features}, k={self.in_features}"
        return f"{shape}, kept={self.weight.shape[1]} in {len(self.outputs)} outputs"


class _Spread(torch.autograd.Function):
    """Columns of kept outputs -> those of all, zero where an output is pruned: both passes read by index, and write in order."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, outputs: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return F.pad(kept, (0, 1)).index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (outputs,) = ctx.saved_tensors
        return dy.index_select(1, outputs), None, None
