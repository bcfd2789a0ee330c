"""A permutation of outputs and inputs in which a weight obeys its pattern, while the network keeps its own order."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Permutation:
    """A permutation of the outputs, of the inputs, or of both, of a weight [N, K].

    Masks and weights stay in the network's order everywhere but in storage: a format keeps its rows or columns in this
    order beside the order itself, and its kernel reads or writes through it. So no other layer has to be permuted and the
    function of the network is unchanged.

    Args:
        outputs: int64 [N]; place i holds output outputs[i]. None = as they are.
        inputs: int64 [K], likewise.
    """

    outputs: Tensor | None = None
    inputs: Tensor | None = None

    def apply(self, matrix: Tensor) -> Tensor:
        """A matrix [N, K] (weight, scores or mask) in this order; a copy where there is one."""
        if self.outputs is not None:
            matrix = matrix.index_select(0, self.outputs.to(matrix.device))
        if self.inputs is not None:
            matrix = matrix.index_select(1, self.inputs.to(matrix.device))
        return matrix

    def invert(self, matrix: Tensor) -> Tensor:
        """The inverse: a permuted [N, K] back in the network's order."""
        if self.outputs is not None:
            matrix = matrix.index_select(0, torch.argsort(self.outputs).to(matrix.device))
        if self.inputs is not None:
            matrix = matrix.index_select(1, torch.argsort(self.inputs).to(matrix.device))
        return matrix

    def orders(self) -> dict[str, Tensor]:
        """`output_order` and `input_order`, those that there are: what a format's `from_dense` takes."""
        orders = {"output_order": self.outputs, "input_order": self.inputs}
        return {name: order for name, order in orders.items() if order is not None}
