"""Several patterns in one network: the allocation chooses one per layer."""

import inspect
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from sparsefront.errors import InvalidSetting, first_line
from sparsefront.options import option_classes
from sparsefront.patterns.base import CLASS, Pattern, Step, from_record, label, make_pattern
from sparsefront.settings_class import Fraction, OneOrMore, settings_class

Candidate = str | dict[str, str | int | float | bool | None]


@settings_class()
class Mixed(Pattern):
    """Each layer gets one of the candidates at one of the sparsities, or stays dense.

    The pattern has no structure of its own: the allocation writes each layer's choice into the mask spec.

    Args:
        candidates: patterns: `tile_wise`, `tile_wise:64` (with a granularity), or a mapping of settings with a `name`
            (`{name: n_m, m: 4}`) or, for user patterns, a class under `_target_`.
        sparsities: levels of a layer; levels above the configured sparsity, which is a ceiling, are not used.
        granularity: default for candidates that have a granularity and do not set it.
    Raises:
        InvalidSetting: a candidate is unknown, prunes nothing, is itself mixed, or has an invalid setting.
    """

    candidates: Annotated[
        OneOrMore[Candidate],
        Field(description="patterns: NAME, NAME:GRANULARITY or a mapping of settings with its name"),
    ] = field(default_factory=lambda: ["tile_wise", "n_m", "block_wise"])
    sparsities: Annotated[OneOrMore[Fraction], Field(description="fractions of zeros, above 0 and below 1")] = field(
        default_factory=lambda: [0.5, 0.625, 0.75, 0.875, 0.9375]
    )
    granularity: int | str | None = None
    name: ClassVar[str] = "mixed"
    uses_granularity: ClassVar[bool] = True
    mixed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if 0 in self.sparsities or len(set(self.sparsities)) < len(self.sparsities):
            allowed = "levels above 0, each once: dense is a choice beside them"
            raise InvalidSetting("sparsities", _format(self.sparsities), allowed)
        labels = [label(pattern) for pattern in self.patterns]
        if len(set(labels)) < len(labels):
            raise InvalidSetting("candidates", _format(labels), "names a candidate twice")

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The candidate patterns."""
        return tuple(self._pattern(candidate) for candidate in self.candidates)

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.patterns

    @property
    def any_sparsity(self) -> bool:
        return all(pattern.any_sparsity for pattern in self.patterns)

    @property
    def single_weights(self) -> bool:
        return all(pattern.single_weights for pattern in self.patterns)

    @property
    def order_searched_by(self) -> str | None:
        return next((key for pattern in self.patterns if (key := pattern.order_searched_by) is not None), None)

    def choices(self, shape: tuple[int, int], sparsity: float) -> list[tuple[Pattern, float]]:
        levels = [level for level in sorted(self.sparsities) if level <= sparsity + 1e-9]
        return [
            (pattern, level)
            for pattern in self.patterns
            for level in levels
            if pattern.inexpressible(shape, level) is None
        ]

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        if self.choices(shape, sparsity):
            return None
        level = min(self.sparsities)
        return "; ".join(f"{label(pattern)}: {pattern.inexpressible(shape, level)}" for pattern in self.patterns)

    def check_sparsity(self, sparsity: float) -> None:
        if sparsity + 1e-9 < min(self.sparsities):
            allowed = f"is the ceiling of pattern.sparsities={_format(self.sparsities)}: at least the lowest of them"
            raise InvalidSetting("sparsity", sparsity, allowed)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        raise TypeError("a layer of pattern mixed obeys one of its candidates, whose steps these would be")

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        raise TypeError("a layer of pattern mixed is stored as its own candidate says")

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return max(pattern.rounding_unit(shape) for pattern in self.patterns)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        """Raise ValueError if the mask obeys none of the candidates."""
        reasons = []
        for pattern in self.patterns:
            try:
                return pattern.check_structure(mask, sparsity)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(f"mixed: no candidate has this mask: {'; '.join(reasons)}")

    def _pattern(self, candidate: Candidate) -> Pattern:
        try:
            pattern = self._build(candidate)
        except InvalidSetting as error:
            allowed = f"{error.key}={error.value}: {error.allowed}"
            raise InvalidSetting("candidates", candidate, allowed) from error
        except (TypeError, ValueError, ImportError, AttributeError) as error:  # from a user's class or settings
            raise InvalidSetting("candidates", candidate, f"cannot be made: {first_line(error)}") from error
        if isinstance(pattern, Pattern) and pattern.tied:
            raise InvalidSetting(
                "candidates", candidate, "ties layers, of which each is given a pattern of its own here"
            )
        if not isinstance(pattern, Pattern) or not pattern.prunes or pattern.mixed or pattern.takes_blocks:
            allowed = "is a pattern that prunes within a layer; dense is a choice beside them all"
            raise InvalidSetting("candidates", candidate, allowed)
        return pattern

    def _build(self, candidate: Candidate) -> Any:
        if isinstance(candidate, str):
            name, _, unit = candidate.partition(":")
            settings: Mapping[str, Any] = {"granularity": int(unit) if unit.isdigit() else unit} if unit else {}
        else:
            settings = {key: value for key, value in candidate.items() if key not in ("name", CLASS)}
            if CLASS in candidate:
                # From the user's configuration, hence trusted; classes in records were checked before (`from_record`).
                return from_record(candidate, trust=[str(candidate[CLASS]).rpartition(".")[0]])
            name = str(candidate.get("name"))
        if self.granularity is not None and "granularity" in _settings_of(name):
            settings = {"granularity": self.granularity, **settings}
        return make_pattern(name, **settings)


def _settings_of(name: str) -> Mapping[str, Any]:
    """The settings of a pattern, looked up by name."""
    pattern_class = option_classes("sparsefront.patterns").get(name)
    return {} if pattern_class is None else inspect.signature(pattern_class).parameters


def _format(values: Any) -> str:
    return f"[{','.join(map(str, values))}]"
