"""Vectors of consecutive outputs at one input are kept or pruned together."""

from typing import ClassVar

from pydantic import PositiveInt

from sparsefront.patterns.base import WindowSize
from sparsefront.patterns.blocks import Distribution, FreeOrBalanced, VectorScore
from sparsefront.settings_class import settings_class


@settings_class()
class VectorWise(FreeOrBalanced):
    """Keep the best vectors of v consecutive outputs at one input k.

    "Vector-wise" is used here as nmSPARSE and NM-SpMM use it: a vector runs along the outputs, so that the outputs of
    one vector row read the same inputs. (The Tile-Wise talk calls windows of single weights vector-wise: that is n_m.)

    Args:
        granularity: v, the vector length; it divides N. 4...128 is what the kernels are made for.
        distribution: free, or balanced = n of every m vectors along K in each vector row (VW-N:M).
        m: window of the balanced distribution; None chooses it as n_m does.
        aggregate: score of a vector: l2, the norm of its importance, or l1, the sum. The sources of the balanced ones do not say
            which; the Tile-Wise authors' code takes l2.
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
