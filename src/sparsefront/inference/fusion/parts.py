"""Which parts of the rewriting are done: all of them, unless a study asks what one of them is worth."""

from dataclasses import dataclass

from sparsefront.errors import InvalidSetting
from sparsefront.inference.fusion.plan import LAYOUTS


@dataclass(frozen=True)
class FusionParts:
    """What the pass over blocks may do.

    Args:
        joined: Linears that read the same activation are one product.
        activation: fused into the product before it. Without it hidden features stay as they are too, for products are then
            no neighbors.
        residual: fused into the product before it, or into the norm behind it.
        residual_in_norm: where the product's kernel cannot fuse the residual and its sum is normalised, the norm adds it, in
            feature-major blocks; else it has a pass of its own.
        compact: hidden features that are pruned vanish between two products, and values that are behind attention.
        layouts: of the residual stream, among which time decides; the first where nothing is timed.
    Raises:
        InvalidSetting: no layout, or one that does not exist.
    """

    joined: bool = True
    activation: bool = True
    residual: bool = True
    residual_in_norm: bool = True
    compact: bool = True
    layouts: tuple[str, ...] = LAYOUTS

    def __post_init__(self) -> None:
        if not self.layouts or any(layout not in LAYOUTS for layout in self.layouts):
            raise InvalidSetting("layouts", self.layouts, f"is one or more of {', '.join(LAYOUTS)}")


ALL_PARTS = FusionParts()
