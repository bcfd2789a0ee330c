"""Masks for the operator benchmark, made by the patterns' own code.

    python -m sparsefront_kernels.bench --distribution pattern --masks sparsefront.pruning.operator_masks:pattern_masks \\
        --mask-settings pattern=tile_wise,checkpoint=model.safetensors

Like trained weights, the random weights are uneven: outputs and inputs differ in size, so a pattern prunes scattered
outputs, and its tiles keep different numbers of inputs.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors import safe_open
from sparsefront_kernels.bench.masks import MaskedWeight, Storage
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.magnitude import Magnitude
from sparsefront.masks.weight_view import as_matrix
from sparsefront.options import option_classes
from sparsefront.patterns.base import Pattern
from sparsefront.settings_class import settings_class

Spread = Annotated[float, Field(ge=0, le=3)]


@settings_class()
class UnevenWeights:
    """Normally distributed weights with rows and columns scaled by exp(spread · normal).

    Args:
        row_spread, column_spread: standard deviations of the log scales of outputs and inputs.
        seed: of the weight, which is the same at every granularity and sparsity.
    """

    row_spread: Spread = 0.25
    column_spread: Spread = 0.25
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"weights": "random"} | dataclasses.asdict(self)

    def weight(self, n: int, k: int, device: torch.device) -> Tensor:
        """float32 [n, k]."""
        drawn = torch.Generator(device).manual_seed(self.seed)
        rows, columns = (torch.randn(size, generator=drawn, device=device) for size in (n, k))
        weight = torch.randn(n, k, generator=drawn, device=device)
        return weight * (self.row_spread * rows).exp()[:, None] * (self.column_spread * columns).exp()


@dataclass(frozen=True)
class CheckpointWeights:
    """Weights from a checkpoint.

    Args:
        checkpoint: a safetensors file.
        layer: name of the weight; None takes the first by name that is [n, k] (convolutions as [outputs, window · inputs]).
    """

    checkpoint: str
    layer: str | None = None

    def __post_init__(self) -> None:
        if not Path(self.checkpoint).is_file():
            raise InvalidSetting("checkpoint", self.checkpoint, "a safetensors file; this one does not exist")

    @property
    def settings(self) -> dict[str, Any]:
        layer = {} if self.layer is None else {"layer": self.layer}
        return {"weights": "checkpoint", "checkpoint": Path(self.checkpoint).name} | layer

    def weight(self, n: int, k: int, device: torch.device) -> Tensor:
        """float32 [n, k].

        Raises:
            InvalidSetting: the file has no such weight.
        """
        with safe_open(self.checkpoint, framework="pt") as stored:
            shapes = {name: stored.get_slice(name).get_shape() for name in sorted(stored.keys())}
            matrices = {
                name: (shape[0], int(torch.Size(shape[1:]).numel()))
                for name, shape in shapes.items()
                if len(shape) in (2, 4)
            }
            fitting = [name for name, size in matrices.items() if size == (n, k) and self.layer in (None, name)]
            if not fitting:
                held = ", ".join(sorted({f"{k}x{n}" for n, k in matrices.values()}))
                key, value = ("checkpoint", self.checkpoint) if self.layer is None else ("layer", self.layer)
                raise InvalidSetting(key, value, f"has no weight of {k} inputs and {n} outputs (KxN); there are {held}")
            return as_matrix(stored.get_tensor(fitting[0])).to(device, torch.float32)


@dataclass(frozen=True)
class PatternMasks:
    """Mask source for the benchmark: a `sparsefront_kernels.bench.masks.MaskSource`.

    Args:
        compact: drop pruned outputs from the product, as between two products of a network.
    """

    of: Pattern
    weights: UnevenWeights | CheckpointWeights
    importance: Magnitude = field(default_factory=Magnitude)
    compact: bool = False

    @property
    def pattern(self) -> str:
        return self.of.name

    @property
    def settings(self) -> str:
        fields: dict[str, Any] = dataclasses.asdict(self.of) if dataclasses.is_dataclass(self.of) else {}
        own = {name: value for name, value in fields.items() if name != "granularity"}
        every = own | {"importance": f"magnitude_{self.importance.norm}"} | self.weights.settings
        every |= {"compact": True} if self.compact else {}
        return " ".join(f"{name}={_text(value)}" for name, value in every.items())

    def draw(self, n: int, k: int, sparsity: float, device: torch.device) -> MaskedWeight:
        """A weight [n, k] with its mask, pruned on its own.

        Raises:
            InvalidSetting: the checkpoint has no such weight.
            ValueError: the pattern cannot divide this shape.
        """
        weight = self.weights.weight(n, k, device)
        scores = self.importance.of(weight)
        mask = self.of.mask(scores, sparsity)
        permutation = self.of.find_permutation(scores, sparsity)
        orders = {} if permutation is None else permutation.orders()
        return MaskedWeight(weight, mask, self._storage((n, k), sparsity, orders), self.compact)

    def _storage(self, shape: tuple[int, int], sparsity: float, orders: dict[str, Any]) -> Storage:
        """The pattern's kernel family, and other families that can store its masks."""
        family, parameters = self.of.storage(shape, sparsity)
        storage: Storage = {family: parameters | orders}
        if family == "blocked":  # all outputs of a block row keep the same inputs
            storage["gathered"] = {"tile": parameters["block"][0], "drop_empty_outputs": False}
        if family == "blocked_2_4":
            storage["blocked"] = parameters | {"fill": True}
            storage["gathered"] = {"tile": parameters["block"][0], "drop_empty_outputs": False, "fill": True}
        if family == "gathered_2_4":
            storage["gathered"] = parameters | {"drop_empty_outputs": True, "fill": True}
        if family == "n_m" and (parameters["n"], parameters["m"]) == (2, 4):
            storage["semi_structured"] = orders
        return storage


def pattern_masks(
    granularity: int,
    *,
    pattern: str = "tile_wise",
    checkpoint: str | None = None,
    layer: str | None = None,
    norm: Literal["l1", "l2"] = "l1",
    row_spread: float = 0.25,
    column_spread: float = 0.25,
    seed: int = 0,
    compact: bool = False,
    **settings: Any,
) -> PatternMasks:
    """Create a mask source of a pattern, for `--masks sparsefront.pruning.operator_masks:pattern_masks`.

    Args:
        granularity: of the pattern.
        pattern: name of the pattern.
        checkpoint, layer: see `CheckpointWeights`; None: `UnevenWeights` with the spreads and the seed.
        norm: of the importance, as in `Magnitude`.
        compact: drop pruned outputs from Y, as between two products of a network; False: they are zeros in Y.
        settings: other settings of the pattern.
    Raises:
        InvalidSetting: no such pattern or setting, or an invalid value.
    """
    patterns = option_classes("sparsefront.patterns")
    kind = patterns.get(pattern)
    if kind is None:
        raise InvalidSetting("pattern", pattern, f"is one of {', '.join(patterns)}")
    allowed = [part.name for part in dataclasses.fields(kind)]
    for key, value in settings.items():
        if key not in allowed:
            raise InvalidSetting(key, value, f"is no setting of {pattern}, which has {', '.join(allowed)}")
    assert issubclass(kind, Pattern)  # true for every option of that package
    made = kind(**({"granularity": granularity} if kind.uses_granularity else {}), **settings)
    if layer is not None and checkpoint is None:
        raise InvalidSetting("layer", layer, "is a layer of a checkpoint, which is not given")
    weights = CheckpointWeights(checkpoint, layer) if checkpoint else UnevenWeights(row_spread, column_spread, seed)
    return PatternMasks(made, weights, Magnitude(norm), compact)


def _text(value: Any) -> str:
    """Format a value for `--mask-settings`."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
