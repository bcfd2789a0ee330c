"""Which layers of a network a run prunes, and why the others stay dense."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from sparsefront.patterns.base import Pattern


@dataclass(frozen=True)
class PruningPlan:
    """Args:
    shapes: every prunable layer -> [N, K] of its weight as a matrix, in the network's order.
    dense_reasons: those of them that stay dense -> why.
    """

    shapes: dict[str, tuple[int, int]]
    dense_reasons: dict[str, str]

    @property
    def layers(self) -> list[str]:
        """The layers that are pruned."""
        return [name for name in self.shapes if name not in self.dense_reasons]


def plan_pruning(
    net: nn.Module, prunable: list[str], *, pattern: Pattern, sparsity: float, ignored: Mapping[str, str]
) -> PruningPlan:
    """Sort the prunable layers into pruned and dense.

    Args:
        net: also on the meta device: only shapes are read.
        prunable: names of Linear and Conv2d layers.
        ignored: those of them that stay dense because somebody wants it -> why.
    """
    shapes, reasons = {}, {}
    for name in prunable:
        module = net.get_submodule(name)
        shapes[name] = (module.weight.shape[0], module.weight[0].numel())
        if name in ignored:
            reasons[name] = ignored[name]
        elif getattr(module, "groups", 1) != 1:
            reasons[name] = f"convolution in {module.groups} groups"
        elif (reason := pattern.unsupported_reason(shapes[name], sparsity)) is not None:
            reasons[name] = reason
    return PruningPlan(shapes, reasons)
