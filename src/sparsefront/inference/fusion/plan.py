"""The choices of a pass, small enough to lie beside an export: a network is then rewritten without timing anything."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
