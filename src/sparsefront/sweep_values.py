"""The values of a sweep, each by its own type and range, before the first point begins."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sparsefront.errors import InvalidSetting
from sparsefront.group_options import searched_folders
from sparsefront.setting_types import check_types

Check = Callable[[Sequence[str]], None]


def check_values(overrides: Sequence[str], check: Check, loader: ConfigLoader) -> None:
    """Check a point for each value that is swept, with the first of all other keys; of intervals and ranges both ends.

    As many points are looked at as there are values, not as there are combinations. A value that one point rejects is right
    where another value beside it accepts it, such as another option of the group that reads it: points that do not go
    together fail when their turn comes, and the others go on.

    Args:
        overrides: of the sweep.
        check: raises InvalidSetting for the overrides of a point with a value of a wrong type or out of its range, and
            HydraException where they cannot be composed: that the sweeper tells itself, which composes its points first.
        loader: finds what a glob means.
    Raises:
        InvalidSetting: the first value that can be right in no point.
    """
    fixed, swept = _split(overrides, loader)

    @cache
    def complaint(*values: str) -> InvalidSetting | None:
        try:
            check([*fixed, *(f"{key}={value}" for key, value in zip(swept, values))])
        except InvalidSetting as error:
            return error
        except (HydraException, OmegaConfBaseException):
            return None
        return None

    first = {key: values[0] for key, values in swept.items()}
    for key, values in swept.items():
        for value in values:
            point = first | {key: value}
            beside = (point | {other: one} for other in swept if other != key for one in swept[other])
            found = complaint(*point.values())
            if found is not None and all(complaint(*another.values()) is not None for another in beside):
                raise found


def point_check(config: DictConfig, loader: ConfigLoader) -> Check:
    """The check of the points of a sweep.

    Args:
        config: of the multirun, Hydra's own part included.
    """

    folders = searched_folders(config.hydra.runtime.get("config_sources") or ())

    def check(overrides: Sequence[str]) -> None:
        composed = loader.load_sweep_config(config, list(overrides))
        check_types(composed, dict(composed.hydra.runtime.choices), folders)

    return check


def _split(overrides: Sequence[str], loader: ConfigLoader) -> tuple[list[str], dict[str, list[str]]]:
    """What holds for every point, and the values of each swept key; where a key is given again the later one counts."""
    fixed: dict[str, str] = {}
    swept: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        key = override.get_key_element()
        fixed.pop(key, None)
        swept.pop(key, None)
        if override.is_sweep_override():
            swept[key] = values_of(override)
        else:
            fixed[key] = str(override.input_line)
    return list(fixed.values()), swept


def values_of(override: Override) -> list[str]:
    """What a sweep gives to its key, as typed; of an interval and a range both ends."""
    sweep: Any = override.value()
    if isinstance(sweep, IntervalSweep):
        return [str(sweep.start), str(sweep.end)]
    values = list(override.sweep_string_iterator())
    return [*values[:1], *values[-1:]] if isinstance(sweep, RangeSweep) else values
