"""The choices of a pass, small enough to lie beside an export: a network is then rewritten without timing anything."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting

LAYOUTS = ("feature_major", "row_major")
FORMAT_VERSION = 1


@dataclass(frozen=True)
class BlockPlan:
    """One block.

    Args:
        layout: of its residual stream, one of LAYOUTS.
        kernels: names of the Linears of a product, joined by "+" -> its kernel.
    """

    layout: str
    kernels: dict[str, str]


@dataclass(frozen=True)
class FusionPlan:
    """The whole network.

    Args:
        blocks: block -> how it is rewritten.
        faster_dense: blocks that stay as they are.
        layers: pruned layer outside of these -> its kernel.
    """

    blocks: dict[str, BlockPlan] = field(default_factory=dict)
    faster_dense: tuple[str, ...] = ()
    layers: dict[str, str] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        file.write_text(json.dumps({"format_version": FORMAT_VERSION, **self.to_json()}, indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> "FusionPlan":
        """What `save` wrote.

        Raises:
            InvalidSetting: the file is missing or of another format version (key `plan`).
        """
        if not file.is_file():
            raise InvalidSetting("plan", file, "no such file")
        content = json.loads(file.read_text())
        if (version := content.pop("format_version", None)) != FORMAT_VERSION:
            raise InvalidSetting("plan", file, f"has format version {version}, this program reads {FORMAT_VERSION}")
        return cls.from_json(content)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "FusionPlan":
        blocks = {name: BlockPlan(**block) for name, block in content["blocks"].items()}
        return cls(blocks, tuple(content["faster_dense"]), content["layers"])


@settings_class()
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
    layouts: Annotated[tuple[Literal[LAYOUTS], ...], Field(min_length=1)] = LAYOUTS


ALL_PARTS = FusionParts()
