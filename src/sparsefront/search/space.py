"""The space of a search, written as Hydra's overrides: what is swept becomes a distribution, the rest holds for every point."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def parse_space(overrides: Sequence[str]) -> tuple[dict[str, "BaseDistribution"], list[str]]:
    """Distribution by key, and the overrides that are fixed.

    `a,b` and `choice(a,b)` are categories, `range(8,65,8)` whole numbers in steps without the last one, `interval(0.5,0.9)` any
    number between, `int(interval(1,9))` whole ones; `tag(log, interval(...))` by their logarithm. A range of fractions, or one
    that falls, is the categories of its numbers. Where a key is given again the later one counts.

    Raises:
        InvalidSetting: nothing is searched, a range without a number, an interval that falls, one from 0 by its logarithm, or a
            range by its logarithm.
    """
    distributions: dict[str, BaseDistribution] = {}
    fixed: dict[str, str] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.get_key_element()
        distributions.pop(key, None)
        fixed.pop(key, None)
        if override.is_sweep_override():
            distributions[key] = _distribution(override)
        elif override.is_delete():
            fixed[key] = str(override.input_line)
        else:
            fixed[key] = f"{key}={override.get_value_element_as_str()}"
    if not distributions:
        example = "'sparsity=interval(0.5,0.95)' or pattern=n_m,tile_wise"
        raise InvalidSetting("hydra/sweeper", "optuna", f"nothing to search among: give a space, such as {example}")
    return distributions, list(fixed.values())


def in_overrides(space: "Mapping[str, BaseDistribution]") -> dict[str, str]:
    """Each distribution as an override's value, the same text for the same distribution; a JSON file can hold it."""
    return {key: _as_text(distribution) for key, distribution in space.items()}


def points_of_each_option(space: "Mapping[str, BaseDistribution]") -> list[dict[str, Any]]:
    """A few points of the space that together have each category that is text, as options of a config group are."""
    values = {key: _first_and_texts(distribution) for key, distribution in space.items()}
    most = max(len(found) for found in values.values())
    return [{key: found[place % len(found)] for key, found in values.items()} for place in range(most)]


def _first_and_texts(distribution: "BaseDistribution") -> list[Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return [one for place, one in enumerate(distribution.choices) if place == 0 or isinstance(one, str)]
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return [distribution.low]


def _as_text(distribution: "BaseDistribution") -> str:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return ",".join(map(str, distribution.choices))
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    interval = f"interval({distribution.low},{distribution.high})"
    if isinstance(distribution, IntDistribution):
        if distribution.step > 1:
            return f"range({distribution.low},{distribution.high + 1},{distribution.step})"
        interval = f"int({interval})"
    return f"tag(log,{interval})" if distribution.log else interval


def _distribution(override: Override) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    swept, key, text = override.value(), override.get_key_element(), override.get_value_string()
    if isinstance(swept, IntervalSweep):
        start, end, log = swept.start, swept.end, "log" in swept.tags
        assert start is not None and end is not None
        if not (isfinite(start) and isfinite(end) and start <= end):
            raise InvalidSetting(key, text, "must be finite numbers, the smaller one first")
        if log and start <= 0:
            raise InvalidSetting(key, text, "must begin above 0, as by a logarithm")
        if isinstance(start, int) and isinstance(end, int):
            return IntDistribution(start, end, log=log)
        return FloatDistribution(start, end, log=log)
    if isinstance(swept, RangeSweep) and "log" in swept.tags:
        raise InvalidSetting(key, text, "goes by a logarithm as an interval alone: tag(log, int(interval(1,8)))")
    if isinstance(swept, RangeSweep) and (numbers := _rising_whole_numbers(swept)):
        return IntDistribution(numbers[0], numbers[-1], step=numbers.step)
    if not isinstance(swept, ChoiceSweep | RangeSweep):
        raise InvalidSetting(key, text, "cannot be searched: write the options out, such as pattern=n_m,tile_wise")
    swept.shuffle = False  # all processes need the same order
    still = isinstance(swept, RangeSweep) and swept.step == 0
    choices = [] if still else list(override.sweep_iterator(transformer=Transformer.encode))
    if not choices:
        raise InvalidSetting(key, text, "holds no number")
    return CategoricalDistribution(choices)


def _rising_whole_numbers(swept: RangeSweep) -> range | None:
    """The numbers of a range where all are whole and rise; None of another one."""
    start, stop, step = swept.start, swept.stop, swept.step
    if not (isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)) or step < 1:
        return None
    return range(start, stop, step)
