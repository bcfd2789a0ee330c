"""Which stored stages a user asks for: all the conditions that are given must hold."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparsefront.artifacts.record import damage_of
from sparsefront.cache.inventory import Inventory, Stored
from sparsefront.cache.results import Run
from sparsefront.cache.usage import Usage, only_of
from sparsefront.errors import InvalidSetting

UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True)
class Selection:
    """Conditions of `remove`.

    Args:
        unused: made for no result.
        older_than_s: last used longer ago, in seconds.
        runs: names of runs; what these used and no other result.
        damaged: a file is not what was stored.
        unfinished: not finished stages, but what killed trainings left to go on from.
        stages: of one of these stages.
    """

    unused: bool = False
    older_than_s: float | None = None
    runs: tuple[str, ...] = ()
    damaged: bool = False
    unfinished: bool = False
    stages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unfinished and (self.unused or self.runs or self.damaged):
            raise InvalidSetting(
                "--unfinished", "", "goes with --older-than and --stage alone: no result is made from it"
            )
        if not (self.unused or self.older_than_s is not None or self.runs or self.damaged or self.unfinished):
            raise InvalidSetting("remove", "", "say what: --unused, --older-than, --run, --damaged or --unfinished")

    def find(self, inventory: Inventory, usage: Usage, results: Sequence[Run]) -> list[Stored]:
        """The stages that meet all conditions.

        Raises:
            InvalidSetting: a run or a stage that is not there.
        """
        known = {item.stage for item in inventory.stored}
        if missing := [stage for stage in self.stages if stage not in known]:
            raise InvalidSetting("--stage", missing[0], f"is not in the cache; there are {', '.join(sorted(known))}")
        runs = [run for name in self.runs for run in _called(name, results)]
        now = time.time()
        return [item for item in inventory.stored if self._holds(item, usage, runs, now)]

    def _holds(self, item: Stored, usage: Usage, runs: Sequence[Run], now: float) -> bool:
        return (
            item.finished is not self.unfinished
            and (not self.stages or item.stage in self.stages)
            and (self.older_than_s is None or now - item.last_used > self.older_than_s)
            and (not self.unused or not usage[item.key])
            and (not self.runs or only_of(usage, item, runs))
            and (not self.damaged or damage_of(item.path) is not None)
        )


def _called(name: str, results: Sequence[Run]) -> list[Run]:
    found = [run for run in results if run.is_called(name)]
    if not found:
        raise InvalidSetting(
            "--run", name, f"no such run among {len(results)} results; name its folder, or the run_id of its result"
        )
    return found


def seconds_of(age: str) -> float:
    """`36h`, `30d`, `2w` in seconds.

    Raises:
        InvalidSetting: written otherwise.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", age)
    if found is None:
        raise InvalidSetting("--older-than", age, "is written as a number with h, d or w: 36h, 30d, 2w")
    return float(found[1]) * UNITS_S[found[2]]
