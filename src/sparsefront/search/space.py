"""The space of a search, written as Hydra's overrides: what is swept becomes a distribution, the rest holds for every point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def parse_space(overrides: Sequence[str]) -> tuple[dict[str, "BaseDistribution"], list[str]]:
    """Distribution by key, and the overrides that are fixed.

    `a,b` and `choice(a,b)` are categories, `range(8,65,8)` whole numbers in steps without the last one, `interval(0.5,0.9)` any
    number between, whole where both ends are; `tag(log, interval(...))` by their logarithm. A range of fractions, or one that
    falls, is the categories of its numbers.

    Raises:
        InvalidSetting: nothing is searched, or a range without a number.
    """
    distributions, fixed = {}, []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            distributions[override.get_key_element()] = _distribution(override)
        elif override.is_delete():
            fixed.append(override.input_line)
        else:
            fixed.append(f"{override.get_key_element()}={override.get_value_element_as_str()}")
    if not distributions:
        example = "'sparsity=interval(0.5,0.95)' or pattern=n_m,tile_wise"
        raise InvalidSetting("hydra/sweeper", "optuna", f"nothing to search among: give a space, such as {example}")
    return distributions, fixed


def _distribution(override: Override) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    swept = override.value()
    if isinstance(swept, IntervalSweep):
        whole = isinstance(swept.start, int) and isinstance(swept.end, int)
        return (IntDistribution if whole else FloatDistribution)(swept.start, swept.end, log="log" in swept.tags)
    if isinstance(swept, RangeSweep) and (numbers := _rising_whole_numbers(swept)):
        return IntDistribution(numbers[0], numbers[-1], step=numbers.step)
    assert isinstance(swept, ChoiceSweep | RangeSweep)
    still = isinstance(swept, RangeSweep) and swept.step == 0
    choices = [] if still else list(override.sweep_iterator(transformer=Transformer.encode))
    if not choices:
        raise InvalidSetting(override.get_key_element(), override.get_value_string(), "holds no number")
    return CategoricalDistribution(choices)


def _rising_whole_numbers(swept: RangeSweep) -> range | None:
    """The numbers of a range that keeps its order, where all are whole and rise; None of another one."""
    start, stop, step = swept.start, swept.stop, swept.step
    if swept.shuffle or not (isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)) or step < 1:
        return None
    return range(start, stop, step)
