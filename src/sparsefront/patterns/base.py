"""The pattern interface: pruning steps over groups of weights, mask checks, n:m windows, and (de)serialization."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries, Groups, select_in_layer
from sparsefront.masks.weight_view import Permutation
from sparsefront.networks import require_finite
from sparsefront.options import TARGET as CLASS
from sparsefront.options import class_named, option_classes, target_values
from sparsefront.settings_class import validate_arguments, without_later

BlockSize = (
    PositiveInt
    | Annotated[str, Field(pattern=r"^0*[1-9]\d*(x0*[1-9]\d*)?$", description='outputs x inputs, such as "4x64"')]
)
"""The side of a square block, or both sides."""


def block_shape(granularity: BlockSize) -> tuple[int, int]:
    """(outputs, inputs) of a block, from one side (64) or both ("4x64")."""
    outputs, _, inputs = str(granularity).partition("x")
    return int(outputs), int(inputs or outputs)


# n:m windows: exactly n of every m consecutive groups along K are kept; on the way of a schedule n or n + 1.
#
# Shared by n_m (groups are weights), vector_wise (vectors) and block_wise (blocks).

# The search for m starts at 4, not 2: at a density of 0.5, GPUs run 2:4, not 1:2.
SMALLEST_M, LARGEST_M = 4, 64
# Largest allowed |n/m - density|: lets 3:32 stand for a sparsity of 0.9.
TOLERANCE = 0.01

WindowSize = Annotated[
    Annotated[int, Field(ge=2, le=LARGEST_M)] | None, Field(description="null: chosen by sparsity and shape")
]
"""The `m` setting of an n:m pattern."""


class Window(NamedTuple):
    """n kept of every m."""

    n: int
    m: int

    @property
    def sparsity(self) -> float:
        """Fraction of zeros."""
        return 1 - self.n / self.m

    def expresses(self, sparsity: float) -> bool:
        """Whether n/m is within TOLERANCE of the density; 1e-9 absorbs float rounding."""
        return abs(self.sparsity - sparsity) <= TOLERANCE + 1e-9

    def before(self, sparsity: float) -> "Window":
        """The window on the way of a schedule that ends here: at `sparsity`, windows keep its n, and the best of them n + 1."""
        return Window(max(self.n, min(self.m - 1, math.floor((1 - sparsity) * self.m + 1e-9))), self.m)


def nearest_window(m: int, sparsity: float) -> Window:
    """The window with this m whose n (at least 1) is nearest to the density; ties go to the larger n."""
    return Window(min(m, max(1, math.floor((1 - sparsity) * m + 0.5))), m)


def find_window(length: int, sparsity: float, *, n: int | None, m: int | None) -> Window | None:
    """Find the window for `length` groups along K; None if there is none.

    Args:
        length: number of groups along K; must be a multiple of m.
        sparsity: fraction of zeros, in [0, 1).
        n: number of kept groups; None derives it from sparsity and m.
        m: window size; None takes the smallest from 4 to 64 that divides `length` and has an n with n/m within 0.01 of
            the density (0.5 -> 2:4, 0.75 -> 1:4, 0.9 -> 3:32 if only powers of two divide).
    """
    for size in (m,) if m is not None else range(SMALLEST_M, LARGEST_M + 1):
        window = nearest_window(size, sparsity) if n is None else Window(n, size)
        if length % size == 0 and window.expresses(sparsity):
            return window
    return None


def check_window_sparsity(sparsity: float, *, n: int | None, m: int | None) -> None:
    """Raise InvalidSetting if no layer, whatever its shape, has a window for this sparsity."""
    if m is None:
        if not any(nearest_window(size, sparsity).expresses(sparsity) for size in range(SMALLEST_M, LARGEST_M + 1)):
            nearest = Window(1, LARGEST_M)
            raise InvalidSetting("m", m, f"no m up to {LARGEST_M} expresses sparsity {sparsity:g}; {_join(nearest)}")
    elif not nearest_window(m, sparsity).expresses(sparsity):
        around = (Window(kept_count, m) for kept_count in range(m, 0, -1))
        nearest = sorted(sorted(around, key=lambda window: abs(window.sparsity - sparsity))[:2], reverse=True)
        raise InvalidSetting("m", m, f"cannot express sparsity {sparsity:g}; {_join(*nearest)}")
    elif n is not None and not Window(n, m).expresses(sparsity):
        agreeing = nearest_window(m, sparsity)
        raise InvalidSetting(
            "n",
            n,
            f"{n}:{m} is sparsity {Window(n, m).sparsity:.4g}, not {sparsity:g}; n: {agreeing.n} (or null) agrees",
        )


def window_unsupported_reason(
    length: int, counted: str, sparsity: float, *, n: int | None, m: int | None
) -> str | None:
    """Why `length` groups along K have no window; None if they have one. `counted` names the length in the message."""
    if find_window(length, sparsity, n=n, m=m) is not None:
        return None
    if m is None:
        return (
            f"no m from {SMALLEST_M} to {LARGEST_M} divides {counted} with n/m within {TOLERANCE} of density "
            f"{1 - sparsity:.4g}"
        )
    if length % m:
        return f"{counted} are not a multiple of m {m}"
    return f"windows of m {m} cannot express sparsity {sparsity:g}"


def _join(*windows: Window) -> str:
    """Format the nearest sparsities for an error message."""
    listed = " and ".join(f"{window.sparsity:.4g} ({window.n}:{window.m})" for window in windows)
    return f"the nearest {'sparsities are' if len(windows) > 1 else 'sparsity is'} {listed}"


class Step(Protocol):
    """One step of a pattern: it forms groups, an allocation selects the survivors, and the step turns them into a mask.

    A step that regrows weights declares `regrows = True`. Both methods then also take `allowed`, the bool [N, K] mask
    from before the pattern's first step, and their results stay within it.
    """

    @property
    def target(self) -> float:
        """Sparsity over all prunable weights after this step, earlier steps included."""
        ...

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Form the groups of one layer from its importance [N, K] and the bool mask [N, K] left by earlier steps."""
        ...

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Build the layer's new mask [N, K] from `kept` (bool, shape of the scores) and the arguments of `groups`.

        Steps are stateless, so importance is passed again: some masks depend on it (ranks, permutations).
        """
        ...


class Pattern(ABC):
    """A sparsity pattern. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    The attributes decide which other options a pattern can be combined with; the defaults suit groups that are kept or
    pruned independently.

    Attributes:
        uses_granularity: has a field `granularity`, the size of its groups.
        prunes: removes weights; False only for the dense baseline.
        mixed: each layer gets a pattern of its own, which the allocation selects from `choices`.
        takes_blocks: removes whole blocks of the network and never divides a layer.
        trains_sparse: has kernels that skip pruned weights in training too (backward pass and optimizer).
    """

    name: ClassVar[str]
    uses_granularity: ClassVar[bool] = False
    prunes: ClassVar[bool] = True
    mixed: ClassVar[bool] = False
    takes_blocks: ClassVar[bool] = False
    trains_sparse: ClassVar[bool] = False
    multiple_of = 1  # of the widths that become smaller, where it is `tied`

    @property
    def parts(self) -> tuple["Pattern", ...]:
        """The patterns that this one is composed of; masks depend on their code too."""
        return ()

    def choices(self, shape: tuple[int, int], sparsity: float) -> list[tuple["Pattern", float]]:
        """The (pattern, sparsity) pairs that a layer [N, K] may get in a network pruned to `sparsity`."""
        return [(self, sparsity)]

    @property
    def balanced(self) -> bool:
        """Whether n of every m groups survive in each layer, so that groups are never ranked across layers."""
        return False

    @property
    def any_sparsity(self) -> bool:
        """Whether a layer can have any sparsity, up to the rounding unit, rather than a fixed set."""
        return not self.balanced

    @property
    def tied(self) -> bool:
        """Whether groups span layers (`patterns.width`), so that no mask can be made from one layer alone."""
        return False

    @property
    def in_blocks(self) -> bool:
        """Whether groups are heads and features inside of blocks."""
        return False

    @property
    def over_norms(self) -> bool:
        """Whether groups are features that norms average, so that norms of the masked network are over those that are left."""
        return False

    @property
    def single_weights(self) -> bool:
        """Whether weights are kept or pruned individually, possibly within windows of a row (`window`)."""
        return False

    @property
    def exchanges_within(self) -> Literal["window", "row"] | None:
        """Where a kept and a pruned weight may be exchanged: in the same window of a row (`window`), in the same row, or
        None if weights are grouped.
        """
        return None

    @property
    def outputs_together(self) -> int | None:
        """Number of neighboring outputs, counted from the layer's first, that one group spans; None if a group may hold any
        outputs. A grouped convolution is pruned per convolution group if this divides the outputs of each.
        """
        return None

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Setting that fixes a group size -> minimum (outputs, inputs) of a layer that holds one whole group."""
        return {}

    @property
    def order_searched_by(self) -> str | None:
        """The full key of the setting that turns on `find_permutation`; None if there is no permutation search."""
        return None

    @property
    def ranked_in_source(self) -> bool:
        """Whether the source ranks groups across layers; used by studies only, a run uses its configured allocation."""
        return not self.balanced

    def window(self, shape: tuple[int, int], sparsity: float) -> Window | None:
        """The n:m window of a layer; None if the pattern is not balanced."""
        return None

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        """Find the permutation under which a layer obeys the pattern, once, from its first scores; None = identity.

        Args:
            importance: float32 [N, K].
            sparsity: the final sparsity.
        """
        return None

    @abstractmethod
    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """The steps that lead to `sparsity`; their targets do not depend on the layer.

        Args:
            sparsity: fraction of zeros after these steps, in [0, 1).
            shape: [N, K] of the layer, for which `unsupported_reason` is None.
            final_sparsity: the end of a gradual schedule; None = `sparsity`. It fixes the structure that must not change
                between rounds (the window of n:m, the outputs of a tile), so that masks are nested.
        """

    @abstractmethod
    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """The layer's kernel family and the keyword arguments of that family's `from_dense`."""

    @abstractmethod
    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """The largest number of weights by which a layer's pruned total may miss the target."""

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        """Why a layer of this shape has to stay dense; None if it can be pruned."""
        return None

    def inexpressible(self, shape: tuple[int, int], sparsity: float) -> str | None:
        """Why no layer, or no layer of this shape, can have this sparsity; None if it can."""
        try:
            self.check_sparsity(sparsity)
        except InvalidSetting as error:
            return str(error)
        return self.unsupported_reason(shape, sparsity)

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting, naming the nearest sparsities, if no layer of any shape can have `sparsity`."""

    def check(self, mask: Tensor, sparsity: float, permutation: Permutation | None = None) -> None:
        """Raise ValueError, naming the broken invariant and its value, if a mask [N, K] violates the pattern.

        Args:
            permutation: the permutation under which the mask obeys the pattern; None = identity.
        """
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise ValueError(f"{self.name}: a mask is bool [N, K], not {mask.dtype} {list(mask.shape)}")
        self.check_structure(mask if permutation is None else permutation.apply(mask), sparsity)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Raise ValueError if a permuted bool mask [N, K] violates the pattern; overridden by subclasses."""

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        """Group boundaries of a permuted bool mask [N, K] with this layer's sparsity, for mask pictures."""
        return Boundaries()

    def mask(self, importance: Tensor, sparsity: float) -> Tensor:
        """Compute the mask of one layer on its own at exactly this sparsity.

        Args:
            importance: [N, K], any float dtype, larger = more worth keeping; ties go to the lower index.
            sparsity: fraction of zeros, in [0, 1).
        Returns:
            bool [N, K] on importance's device, True = keep.
        Raises:
            InvalidSetting: sparsity is out of range, or the pattern's settings cannot express it.
            ValueError: the pattern cannot divide this shape, or importance is not finite.
        """
        validate_sparsity(sparsity)
        self.check_sparsity(sparsity)
        require_divisible(self, tuple(importance.shape), sparsity)
        require_finite({"importance": importance})
        scores = importance.float()
        permutation = self.find_permutation(scores, sparsity) or Permutation()
        keeps = self.layer_mask(permutation.apply(scores), torch.ones_like(importance, dtype=torch.bool), sparsity)
        return permutation.invert(keeps)

    def layer_mask(
        self, scores: Tensor, allowed: Tensor, sparsity: float, final_sparsity: float | None = None
    ) -> Tensor:
        """Like `mask`, but for validated scores and within an earlier mask.

        Args:
            scores: float32 [N, K], permuted.
            allowed: bool [N, K], permuted: weights that may be kept.
            sparsity, final_sparsity: as for `steps`.
        """
        mask = allowed
        for step in self.steps(sparsity, (scores.shape[0], scores.shape[1]), final_sparsity):
            survivors = select_in_layer(step_groups(step, scores, mask, allowed), scores.numel(), step.target)
            mask = new_mask(step, survivors, scores, mask, allowed)
        return mask


def step_groups(step: Step, scores: Tensor, mask: Tensor, allowed: Tensor) -> Groups:
    """The groups of a layer in a step that starts from `mask`; `allowed`: see `Step`."""
    return step.groups(scores, mask, allowed=allowed) if regrows(step) else step.groups(scores, mask)


def new_mask(step: Step, kept: Tensor, scores: Tensor, mask: Tensor, allowed: Tensor) -> Tensor:
    """The mask after a step, from its survivors.

    Raises:
        InvalidSetting: the step (possibly user code) does not return a bool [N, K].
    """
    again = {"allowed": allowed} if regrows(step) else {}
    made = step.to_mask(kept, scores, mask, **again)
    if not isinstance(made, Tensor) or made.dtype != torch.bool or made.shape != mask.shape:
        actual = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        problem = f"to_mask returns {actual}, where a mask is bool {list(mask.shape)}, as the weight"
        raise InvalidSetting("pattern", type(step).__qualname__, problem)
    return made & allowed if regrows(step) else made


def regrows(step: Step) -> bool:
    """Whether a step regrows pruned weights."""
    return getattr(step, "regrows", False)


def require_divisible(pattern: Pattern, shape: tuple[int, ...], sparsity: float) -> None:
    """Raise ValueError, with the reason, if a weight of this shape is not a matrix or the pattern cannot divide it."""
    if len(shape) != 2:
        raise ValueError(f"{pattern.name} divides matrices [N, K], not a tensor of shape {list(shape)}")
    reason = pattern.unsupported_reason(shape, sparsity)
    if reason is not None:
        raise ValueError(f"{pattern.name} cannot divide a weight of shape {list(shape)}: {reason}")


def validate_sparsity(sparsity: float) -> None:
    """Raise InvalidSetting unless 0 <= sparsity < 1."""
    if not (math.isfinite(sparsity) and 0.0 <= sparsity < 1.0):
        raise InvalidSetting("sparsity", sparsity, "a fraction of zeros, at least 0 and below 1")


# Patterns as plain values; the class may be user code.


def to_record(pattern: Pattern) -> dict[str, Any]:
    """Convert a pattern to a JSON-able dict: its class (package.module.Class) and its settings."""
    kind = type(pattern)
    settings = dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {}
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}", **without_later(settings)}


def from_record(record: Mapping[str, Any], *, trust: Iterable[str] = ()) -> Pattern:
    """Build the pattern that `to_record` wrote. Records are untrusted: before the class is called, it must be a sparsefront
    pattern and the settings must match its types.

    Args:
        trust: additional packages whose patterns may be imported.
    Raises:
        InvalidSetting: the class, or that of a nested candidate, is not a pattern or not trusted (key `_target_`); a setting
            is unknown or has the wrong type.
    """
    trusted = tuple(trust)
    settings = {key: value for key, value in record.items() if key != CLASS}
    kind = class_named(record.get(CLASS), Pattern, trust=trusted)
    for nested in target_values(settings):
        class_named(nested, Pattern, trust=trusted)
    made: Pattern = kind(**validate_arguments(kind, settings))
    return made


def modules_of(pattern: Pattern) -> set[str]:
    """The modules that define a pattern and its parts, which records of its masks may name."""
    return {type(part).__module__ for part in (pattern, *pattern.parts)}


def make_pattern(name: str, **settings: Any) -> Pattern:
    """Build a pattern by name, such as tile_wise.

    Raises:
        InvalidSetting: no pattern has this name (key `name`), or a setting is invalid.
        TypeError: a setting is unknown.
    """
    classes = option_classes("sparsefront.patterns")
    if name not in classes:
        raise InvalidSetting("name", name, f"is no pattern; there are {', '.join(classes)}")
    return classes[name](**settings)


def label(pattern: Pattern) -> str:
    """A short label: the name plus settings that differ from their defaults, such as `tile_wise:64` or `n_m m=4`."""
    if not dataclasses.is_dataclass(pattern):
        return pattern.name
    defaults = {field.name: field.default for field in dataclasses.fields(pattern)}
    unit = f":{pattern.granularity}" if pattern.uses_granularity else ""  # type: ignore[attr-defined]
    others = [
        f" {key}={value}"
        for key, value in vars(pattern).items()
        if key in defaults and key != "granularity" and value != defaults[key]
    ]
    return f"{pattern.name}{unit}{''.join(others)}"
