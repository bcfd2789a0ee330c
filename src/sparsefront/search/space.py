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

    `a,b` and `choice(a,b)` are categories, `range(8,65,8)` numbers in steps without the last one, `interval(0.5,0.9)` any number
    between, whole where both ends are; `tag(log, interval(...))` by their logarithm.

    Raises:
        InvalidSetting: nothing is searched.
    """
    distributions, fixed = {}, []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            distributions[override.get_key_element()] = _distribution(override)
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
    if isinstance(swept, RangeSweep) and not swept.shuffle and isinstance(swept.step, int):
        return IntDistribution(swept.start, swept.stop - 1, step=swept.step)
    assert isinstance(swept, ChoiceSweep | RangeSweep)
    return CategoricalDistribution(list(override.sweep_iterator(transformer=Transformer.encode)))
