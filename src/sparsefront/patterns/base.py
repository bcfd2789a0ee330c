"""What every pattern provides: ordered steps that name groups of weights, checks of masks, windows, and records of itself."""

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
from sparsefront.options import option_classes, target_values, trusted_class
from sparsefront.settings_class import checked_arguments

# Reading `granularity`: the size of a group of weights that is kept or pruned together.

BlockSize = (
    PositiveInt
    | Annotated[str, Field(pattern=r"^0*[1-9]\d*(x0*[1-9]\d*)?$", description='outputs x inputs, such as "4x64"')]
)
"""The side of a square block, or both sides."""


def block_shape(granularity: BlockSize) -> tuple[int, int]:
    """(outputs, inputs) of a block, from one side (64) or both ("4x64")."""
    outputs, _, inputs = str(granularity).partition("x")
    return int(outputs), int(inputs or outputs)


# Windows of a balanced distribution: exactly n kept of every m consecutive groups along K.
#
# Shared by n_m (groups are weights), vector_wise (vectors) and block_wise (blocks).

# The search for m starts at 4: 2 would be the smallest m for a density of a half, but 2:4 is the pattern that GPUs run.
SMALLEST_M, LARGEST_M = 4, 64
# How far n/m may lie from the density: 3:32 stands for a sparsity of 0.9.
TOLERANCE = 0.01

WindowSize = Annotated[
    Annotated[int, Field(ge=2, le=LARGEST_M)] | None, Field(description="null: chosen by sparsity and shape")
]
"""m, as a setting."""


class Window(NamedTuple):
    """n kept of every m."""

    n: int
    m: int

    @property
    def sparsity(self) -> float:
        """Fraction of zeros."""
        return 1 - self.n / self.m

    def expresses(self, sparsity: float) -> bool:
        """Whether n/m is close enough to the density. The last digits of a float must not decide it."""
        return abs(self.sparsity - sparsity) <= TOLERANCE + 1e-9

    def loosened(self, sparsity: float) -> "Window":
        """The window of the same m on the way to this one: the fewest kept that do not exceed `sparsity`."""
        return Window(min(self.m, max(self.n, math.ceil((1 - sparsity) * self.m - 1e-9))), self.m)


def nearest_window(m: int, sparsity: float) -> Window:
    """The n of this m nearest to the density, at least 1; of two equally near the larger."""
    return Window(min(m, max(1, math.floor((1 - sparsity) * m + 0.5))), m)


def find_window(length: int, sparsity: float, *, n: int | None, m: int | None) -> Window | None:
    """The window for `length` groups along K, or None where there is none.

    Args:
        length: groups along K; m has to divide it.
        sparsity: fraction of zeros, in [0, 1).
        n: the kept count; None derives it from sparsity and m.
        m: the window; None takes the smallest from 4 to 64 that divides `length` and has an n with n/m within 0.01 of
            the density (0.5 -> 2:4, 0.75 -> 1:4, 0.9 -> 3:32 where only powers of two divide).
    """
    for size in (m,) if m is not None else range(SMALLEST_M, LARGEST_M + 1):
        window = nearest_window(size, sparsity) if n is None else Window(n, size)
        if length % size == 0 and window.expresses(sparsity):
            return window
    return None


def check_window_sparsity(sparsity: float, *, n: int | None, m: int | None) -> None:
    """Raise InvalidSetting where no layer, whatever its shape, has a window for this sparsity."""
    if m is None:
        if not any(nearest_window(size, sparsity).expresses(sparsity) for size in range(SMALLEST_M, LARGEST_M + 1)):
            nearest = Window(1, LARGEST_M)
            raise InvalidSetting("m", m, f"no m up to {LARGEST_M} expresses sparsity {sparsity:g}; {_named(nearest)}")
    elif not nearest_window(m, sparsity).expresses(sparsity):
        around = (Window(kept, m) for kept in range(m, 0, -1))
        nearest = sorted(sorted(around, key=lambda window: abs(window.sparsity - sparsity))[:2], reverse=True)
        raise InvalidSetting("m", m, f"cannot express sparsity {sparsity:g}; {_named(*nearest)}")
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
    """Why `length` groups along K have no window, in words; None where they have one. `counted`: length and group."""
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


def _named(*windows: Window) -> str:
    """The nearest sparsities as a user would set them."""
    listed = " and ".join(f"{window.sparsity:.4g} ({window.n}:{window.m})" for window in windows)
    return f"the nearest {'sparsities are' if len(windows) > 1 else 'sparsity is'} {listed}"


class Step(Protocol):
    """One round of a pattern: it names groups, an allocation picks the survivors, and the step turns them into a mask.

    A step that brings weights back declares `regrows = True`; its two methods then also take `allowed`, a bool [N, K] of
    what was there before the first step of the pattern, and what they return is restricted to it.
    """

    @property
    def target(self) -> float:
        """Sparsity over all prunable weights once this step is done, earlier steps included."""
        ...

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """The groups of one layer, from its importance [N, K] and the bool mask [N, K] that earlier steps left."""
        ...

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """The layer's new mask [N, K] from `kept` (bool, shape of the scores) and what `groups` was given.

        Importance comes again because some layouts follow from it (ranks, permutations); a step has no state.
        """
        ...


class Pattern(ABC):
    """A structure that masks obey. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    What it declares about itself decides which other options it goes with; the defaults hold for groups that go or stay
    one by one.

    Attributes:
        uses_granularity: it has groups of a size, its field `granularity`.
        prunes: it takes weights away; only that of the dense baseline does not.
        mixed: layers obey patterns of their own, which the allocation chooses among `choices`.
        takes_blocks: whole blocks of the network go, which then runs without them; no layer is divided.
        trains_sparse: training can skip what is pruned too, in the backward pass and the optimizer as well.
    """

    name: ClassVar[str]
    uses_granularity: ClassVar[bool] = False
    prunes: ClassVar[bool] = True
    mixed: ClassVar[bool] = False
    takes_blocks: ClassVar[bool] = False
    trains_sparse: ClassVar[bool] = False

    @property
    def parts(self) -> tuple["Pattern", ...]:
        """Patterns that it is made of: their code is part of what masks depend on."""
        return ()

    def choices(self, shape: tuple[int, int], sparsity: float) -> list[tuple["Pattern", float]]:
        """What a layer [N, K] may be given in a network pruned to `sparsity`: patterns and sparsities of its own."""
        return [(self, sparsity)]

    @property
    def balanced(self) -> bool:
        """Whether n of every m groups survive in each layer, so that no ranking spans layers."""
        return False

    @property
    def any_sparsity(self) -> bool:
        """Whether a layer may have any sparsity, up to the rounding unit; otherwise only some can be expressed."""
        return not self.balanced

    @property
    def tied(self) -> bool:
        """Whether groups span layers of a network, as `patterns.width` finds them: masks of one layer alone cannot be made."""
        return False

    @property
    def single_weights(self) -> bool:
        """Whether every weight is kept or pruned on its own, at most within the window of its row (`window` says which)."""
        return False

    @property
    def exchanges_within(self) -> Literal["window", "row"] | None:
        """Where a kept and a pruned weight may change places, one for one: within a window of their row (`window` says which),
        anywhere in their row, or nowhere, since weights go together.
        """
        return None

    @property
    def outputs_together(self) -> int | None:
        """The neighboring outputs, counted from a layer's first, that weights of one group lie in. A convolution in groups obeys
        the pattern group by group where that many divide the outputs of each. None: outputs from anywhere in a layer go together.
        """
        return None

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Setting that fixes the size of a group -> the (outputs, inputs) that a layer has at least, to hold a whole one."""
        return {}

    @property
    def order_searched_by(self) -> str | None:
        """The key, written from the root, by which `find_permutation` looks at scores; None where it does not."""
        return None

    @property
    def ranked_in_source(self) -> bool:
        """Whether its source ranks groups across layers, for studies of it; a run takes the allocation configured."""
        return not self.balanced

    def window(self, shape: tuple[int, int], sparsity: float) -> Window | None:
        """The window of a layer of a balanced pattern; None where there is none."""
        return None

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        """The order in which a layer obeys the pattern, decided once from its first scores; None = its own.

        Args:
            importance: float32 [N, K].
            sparsity: the final one.
        """
        return None

    @abstractmethod
    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """The rounds that lead to `sparsity`; their targets do not depend on the layer.

        Args:
            sparsity: fraction of zeros wanted now, in [0, 1).
            shape: [N, K] of the layer, for which `unsupported_reason` is None.
            final_sparsity: where a gradual schedule ends; None: at `sparsity`. Structure that must not change on the
                way (the window of n:m, the membership of tiles) follows from it, so that masks can nest.
        """

    @abstractmethod
    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """Canonical kernel family of a layer and the keyword parameters of that family's `from_dense`."""

    @abstractmethod
    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """The most weights by which a layer's pruned total may miss the target."""

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        """Why a layer of this shape cannot be divided and has to stay dense; None where it can."""
        return None

    def inexpressible(self, shape: tuple[int, int], sparsity: float) -> str | None:
        """Why no layer, or not one of this shape, can have this sparsity; None where it can."""
        try:
            self.check_sparsity(sparsity)
        except InvalidSetting as error:
            return str(error)
        return self.unsupported_reason(shape, sparsity)

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting where no layer of any shape could express `sparsity`, naming the nearest."""

    def check(self, mask: Tensor, sparsity: float, permutation: Permutation | None = None) -> None:
        """Raise ValueError naming the invariant that a mask [N, K] breaks, and the value that breaks it.

        Args:
            permutation: the order in which the mask obeys the pattern; None = its own.
        """
        if mask.dtype != torch.bool or mask.dim() != 2:
            raise ValueError(f"{self.name}: a mask is bool [N, K], not {mask.dtype} {list(mask.shape)}")
        self.check_structure(mask if permutation is None else permutation.apply(mask), sparsity)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Raise ValueError where a permuted bool mask [N, K] breaks the pattern; subclasses say how."""

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        """Where the groups of a permuted bool mask [N, K] of this layer's sparsity begin; drawn in pictures of it."""
        return Boundaries()

    def mask(self, importance: Tensor, sparsity: float) -> Tensor:
        """The mask of one layer on its own, at exactly this layer's sparsity.

        Args:
            importance: [N, K], any float dtype, larger = more worth keeping; ties go to the lower index.
            sparsity: fraction of zeros, in [0, 1).
        Returns:
            bool [N, K] on importance's device, True = keep.
        Raises:
            InvalidSetting: a sparsity out of range, or one that the pattern's settings cannot express.
            ValueError: a shape that the pattern cannot divide, or importance that is not finite.
        """
        validate_sparsity(sparsity)
        self.check_sparsity(sparsity)
        require_divisible(self, tuple(importance.shape), sparsity)
        require_finite({"importance": importance})
        scores = importance.float()
        permutation = self.find_permutation(scores, sparsity) or Permutation()
        kept = self.layer_mask(permutation.apply(scores), torch.ones_like(importance, dtype=torch.bool), sparsity)
        return permutation.invert(kept)

    def layer_mask(
        self, scores: Tensor, allowed: Tensor, sparsity: float, final_sparsity: float | None = None
    ) -> Tensor:
        """What `mask` returns, within what an earlier mask left, of scores that were checked.

        Args:
            scores: float32 [N, K], permuted.
            allowed: bool [N, K], permuted: nothing else is kept.
            sparsity, final_sparsity: as for `steps`.
        """
        mask = allowed
        for step in self.steps(sparsity, (scores.shape[0], scores.shape[1]), final_sparsity):
            survivors = select_in_layer(step_groups(step, scores, mask, allowed), scores.numel(), step.target)
            mask = new_mask(step, survivors, scores, mask, allowed)
        return mask


def step_groups(step: Step, scores: Tensor, mask: Tensor, allowed: Tensor) -> Groups:
    """The groups that a step decides about, of a layer at `mask`; `allowed`: see `Step`."""
    return step.groups(scores, mask, allowed=allowed) if regrows(step) else step.groups(scores, mask)


def new_mask(step: Step, kept: Tensor, scores: Tensor, mask: Tensor, allowed: Tensor) -> Tensor:
    """The mask that follows from the survivors of a step.

    Raises:
        InvalidSetting: the step, which may be a user's own, makes no bool [N, K].
    """
    again = {"allowed": allowed} if regrows(step) else {}
    made = step.to_mask(kept, scores, mask, **again)
    if not isinstance(made, Tensor) or made.dtype != torch.bool or made.shape != mask.shape:
        given = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        wanted = f"to_mask returns {given}, where a mask is bool {list(mask.shape)}, as the weight"
        raise InvalidSetting("pattern", type(step).__qualname__, wanted)
    return made & allowed if regrows(step) else made


def regrows(step: Step) -> bool:
    """Whether a step brings weights back."""
    return getattr(step, "regrows", False)


def require_divisible(pattern: Pattern, shape: tuple[int, ...], sparsity: float) -> None:
    """Raise ValueError with the reason where a weight of this shape is no matrix or the pattern cannot divide it."""
    if len(shape) != 2:
        raise ValueError(f"{pattern.name} divides matrices [N, K], not a tensor of shape {list(shape)}")
    reason = pattern.unsupported_reason(shape, sparsity)
    if reason is not None:
        raise ValueError(f"{pattern.name} cannot divide a weight of shape {list(shape)}: {reason}")


def validate_sparsity(sparsity: float) -> None:
    """Raise InvalidSetting unless 0 <= sparsity < 1."""
    if not (math.isfinite(sparsity) and 0.0 <= sparsity < 1.0):
        raise InvalidSetting("sparsity", sparsity, "a fraction of zeros, at least 0 and below 1")


# A pattern with its settings as plain values, and back; its class may be a user's own.


def to_record(pattern: Pattern) -> dict[str, Any]:
    """Its class, package.module.Class, and its settings: JSON-able."""
    kind = type(pattern)
    settings = dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {}
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}", **settings}


def from_record(record: Mapping[str, Any], *, trust: Iterable[str] = ()) -> Pattern:
    """The pattern that `to_record` wrote. A record may come from anyone: its class must be a pattern of sparsefront's, and its
    settings fit the types of that class, before it is called.

    Args:
        trust: packages whose patterns may be imported besides.
    Raises:
        InvalidSetting: a class that is no pattern or is not trusted (key `_target_`), also of a candidate inside; settings that
            it does not take.
    """
    trusted = tuple(trust)
    settings = {key: value for key, value in record.items() if key != CLASS}
    kind = trusted_class(record.get(CLASS), Pattern, trust=trusted)
    for nested in target_values(settings):
        trusted_class(nested, Pattern, trust=trusted)
    made: Pattern = kind(**checked_arguments(kind, settings))
    return made


def modules_of(pattern: Pattern) -> set[str]:
    """The modules that define a pattern and its parts: what records of its own masks may name."""
    return {type(part).__module__ for part in (pattern, *pattern.parts)}


def named_pattern(name: str, **settings: Any) -> Pattern:
    """A pattern by its name, such as tile_wise.

    Raises:
        InvalidSetting: no pattern has this name (key `name`), or a setting is wrong.
        TypeError: a setting that it does not take.
    """
    classes = option_classes("sparsefront.patterns")
    if name not in classes:
        raise InvalidSetting("name", name, f"is no pattern; there are {', '.join(classes)}")
    return classes[name](**settings)


def label(pattern: Pattern) -> str:
    """Short, for people and tables: its name, and what differs from the defaults: `tile_wise:64`, `n_m m=4`."""
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
