"""Vectors of consecutive outputs at one input are kept or pruned together."""

from typing import ClassVar

from pydantic import PositiveInt

from sparsefront.patterns.base import WindowSize
from sparsefront.patterns.blocks import Distribution, FreeOrBalanced, VectorScore
from sparsefront.settings_class import settings_class


@settings_class()
class VectorWise(FreeOrBalanced):
    """Keep the best vectors of v consecutive outputs at one input k.

    "Vector-wise" means what it means in nmSPARSE and NM-SpMM: a vector runs along the outputs, so all outputs of a vector
    row read the same inputs. (What the Tile-Wise talk calls vector-wise, windows of single weights, is n_m.)

    Args:
        granularity: v, the vector length; must divide N. The kernels are made for 4 to 128.
        distribution: free, or balanced = n of every m vectors along K in each vector row (VW-N:M).
        m: window of the balanced distribution; None chooses it as n_m does.
        aggregate: score of a vector: l2, the norm of its importance, or l1, the sum. The sources of the balanced
            distribution do not say which; the Tile-Wise authors' code uses l2.
    Source: balanced: Lin et al., nmSPARSE, and Ma et al., NM-SpMM. free: the one-dimensional variant of the Tile-Wise
        authors' public code, which ranks the vectors of the whole network (allocation=global_threshold).
    """

    granularity: PositiveInt = 32
    distribution: Distribution = "free"
    m: WindowSize = None
    aggregate: VectorScore = "l2"
    name: ClassVar[str] = "vector_wise"
    uses_granularity: ClassVar[bool] = True

    @property
    def block(self) -> tuple[int, int]:
        return self.granularity, 1

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": False}
