"""What an export says about itself: its pattern and how each pruned layer is stored; kernels are chosen at the swap."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

# A manifest may come from anyone: JSON of these types, and of no others.
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# 2: masks of one bit a weight, and dense layers in model.safetensors alone. Exports of version 1 are read as well.
# 3: columns of a convolution tap by tap, channels inside (see `masks.weight_view`); before, channel by channel, taps inside.
#    Earlier exports are read as well where both orders are one.
FORMAT_VERSION = 3
TAP_BY_TAP = 3  # the first version with this order


@dataclass(frozen=True)
class LayerRecord:
    """One pruned layer.

    Args:
        family: its storage, one of the kernel package's formats.
        parameters: what the format was made with.
        meta: what the format needs beside its tensors to be read back.
        shape: [N, K] of the weight as a matrix.
        nnz: weights kept, as the mask counts them.
        density: nnz / (N * K).
        pattern: its own, in a network of several patterns; None where it is that of the manifest, or the layer is dense.
    """

    family: str
    parameters: dict[str, Any]
    meta: dict[str, Any]
    shape: tuple[NonNegativeInt, NonNegativeInt]
    nnz: int
    density: float
    pattern: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True)
class Manifest:
    """The whole export.

    Args:
        pattern: its name; None where it is not known.
        pattern_parameters: its settings.
        sparsity: the target of the whole network.
        layers: the pruned ones.
        dense_layers: prunable layer -> why it stayed dense.
        pattern_class: package.module.Class of the pattern; None in exports of earlier versions.
    """

    pattern: str | None
    pattern_parameters: dict[str, Any]
    sparsity: Annotated[float, Field(ge=0, lt=1)]
    layers: dict[str, LayerRecord] = field(default_factory=dict)
    dense_layers: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    pattern_class: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Manifest":
        """The manifest that `to_json` gave.

        Raises:
            ValueError: another format version, an entry that is missing or that there is not, or one of another type.
        """
        version = content.get("format_version") if isinstance(content, dict) else None
        if version not in range(1, FORMAT_VERSION + 1):
            raise ValueError(f"an export of format version {version}, while this program reads up to {FORMAT_VERSION}")
        try:
            return TypeAdapter(cls).validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
