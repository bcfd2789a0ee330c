"""Search space, objectives and sweeper settings, checked before a study begins."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer
from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from sparsefront.errors import InvalidSetting, first_line, keys_of
from sparsefront.results.columns import MORE_IS_BETTER, is_quality
from sparsefront.results.field_types import alternatives
from sparsefront.results.record import result_fields
from sparsefront.settings_class import parameters_of, require_known, settings_class, validate_values
from sparsefront.tasks.outcomes import lower_is_better

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def require_choosable(names: Sequence[str], sweeper: str) -> None:
    """Check that a search may optimize these fields: numbers of the result, not of the reporting split.

    Args:
        names: of fields, without their directions.
        sweeper: its name, for messages.
    Raises:
        InvalidSetting: there is none, one is no number, or one is of the reporting split.
    """
    if not names:
        raise InvalidSetting("optimize", "[]", f"{sweeper} needs at least one value of the record")
    numbers = {field.name for field in result_fields() if {int, float} & set(alternatives(field.hint))}
    numbers -= {"schema_version", "migrated_from"}
    for name in names:
        if name not in numbers:
            raise InvalidSetting("optimize", name, f"is no number, so {sweeper} would have nothing to optimize")
        if f"val_{name}" in numbers:
            allowed = f"is of the reporting split, by which {sweeper} must not choose: take val_{name}"
            raise InvalidSetting("optimize", name, allowed)


DIRECTIONS = ("maximize", "minimize")
LESS_IS_BETTER = re.compile(r"_(ms|seconds|error)$|_bytes(_|$)")


@dataclass(frozen=True)
class Objective:
    """A field of the result, and whether to maximize or minimize it."""

    name: str
    direction: str


def objective(text: str, metric: str | None = None) -> Objective:
    """Parse an entry of `optimize`: a FIELD with a natural direction, such as `sparse`, or `maximize:FIELD`.

    Args:
        metric: of the task, if known: a perplexity is minimized.
    Raises:
        InvalidSetting: the field has no natural direction, or the word before the colon is none.
    """
    direction, colon, name = text.rpartition(":")
    if colon and direction not in DIRECTIONS:
        raise InvalidSetting("optimize", text, f"is written as {' or '.join(f'{word}:{name}' for word in DIRECTIONS)}")
    if not colon:
        direction = _own_direction(name, metric)
    return Objective(name, direction)


def _own_direction(name: str, metric: str | None) -> str:
    if is_quality(name):
        return "minimize" if lower_is_better(metric) else "maximize"
    if name.removeprefix("val_") in MORE_IS_BETTER:
        return "maximize"
    if LESS_IS_BETTER.search(name):
        return "minimize"
    choices = " or ".join(f"{word}:{name}" for word in DIRECTIONS)
    raise InvalidSetting("optimize", name, f"does not tell which end is better: write {choices}")


SWEEPER_KEY = "hydra.sweeper"
LONGEST_NAME = 100  # bytes; the name becomes part of file names
Seed = Annotated[int, Field(ge=0, lt=2**31)] | None


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"must be a file name: without /, with no dot in front, of at most {LONGEST_NAME} bytes")
    return name


def _as_mapping(params: Any) -> Any:
    plain: Any = OmegaConf.to_container(params) if isinstance(params, DictConfig) else params
    if not isinstance(plain or {}, dict):
        raise ValueError("must hold overrides by key, such as {sparsity: 'interval(0.5,0.95)'}")
    return plain or {}


@settings_class(kw_only=True)
class SearchSettings:
    """See conf/hydra/sweeper/optuna.yaml."""

    study: Annotated[str, AfterValidator(_file_name)]
    storage: str | None
    n_trials: PositiveInt
    batch: PositiveInt
    params: Annotated[dict[str, Any], BeforeValidator(_as_mapping)]
    sampler: object


def search_settings(settings: Mapping[str, Any]) -> SearchSettings:
    """Check the sweeper's settings.

    Raises:
        InvalidSetting: one is unknown or wrong, or the sampler does not accept its settings.
    """
    with keys_of(SWEEPER_KEY):
        require_known(parameters_of(SearchSettings), settings, SWEEPER_KEY)
        checked = SearchSettings(**settings)
    _require_sampler(checked.sampler)
    return checked


def _require_sampler(sampler: Any) -> None:
    from hydra.utils import instantiate

    group = f"{SWEEPER_KEY}.sampler"
    if not isinstance(sampler, Mapping | DictConfig) or "_target_" not in sampler:
        raise InvalidSetting(
            group, sampler, f"is no sampler: choose one with {SWEEPER_KEY.replace('.', '/')}/sampler=tpe"
        )
    with keys_of(group):
        validate_values({"seed": sampler.get("seed")}, {"seed": Seed})
    try:
        instantiate(sampler)
    except Exception as error:
        reason = first_line(error.__cause__ or error)
        raise InvalidSetting(group, sampler["_target_"], f"does not take its settings: {reason}") from error


def parse_space(overrides: Sequence[str]) -> tuple[dict[str, "BaseDistribution"], list[str]]:
    """Parse overrides into distributions by key, and fixed overrides.

    `a,b` and `choice(a,b)` are categories, `range(8,65,8)` integers with a step and an exclusive end, `interval(0.5,0.9)` floats,
    `int(interval(1,9))` integers; `tag(log, interval(...))` is log-uniform. A range of fractions, or a descending one, becomes
    categories. The last override of a key counts.

    Raises:
        InvalidSetting: there is no space, a range is empty or logarithmic, an interval descends, or is logarithmic from 0.
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
    """Each distribution as the text of an override's value, in a canonical, JSON-able form."""
    return {key: _as_text(distribution) for key, distribution in space.items()}


def covering_points(space: "Mapping[str, BaseDistribution]") -> list[dict[str, Any]]:
    """A few points of the space that together cover all text categories, such as options of a config group."""
    values = {key: _first_and_texts(distribution) for key, distribution in space.items()}
    most = max(len(options) for options in values.values())
    return [{key: options[place % len(options)] for key, options in values.items()} for place in range(most)]


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
    """The range if it consists of ascending integers, else None."""
    start, stop, step = swept.start, swept.stop, swept.step
    if not (isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)) or step < 1:
        return None
    return range(start, stop, step)
