"""Unstructured pruning: the finest pattern and the accuracy reference for the others."""

from typing import ClassVar, Literal

from sparsefront.patterns.blocks import BlockPattern
from sparsefront.settings_class import settings_class


@settings_class()
class ElementWise(BlockPattern):
    """Keep the most important weights, wherever they are.

    Source: unstructured pruning, called element-wise (EW) in the Tile-Wise talk, whose public code ranks all weights of
        the network against one threshold; allocation=global_threshold.
    """

    name: ClassVar[str] = "element_wise"

    @property
    def block(self) -> tuple[int, int]:
        return 1, 1

    @property
    def single_weights(self) -> bool:
        return True

    @property
    def exchanges_within(self) -> Literal["window", "row"] | None:
        return "row"

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "csr", {}
