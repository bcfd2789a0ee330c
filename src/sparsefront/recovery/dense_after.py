"""`recovery.dense_after`: sparse-to-dense training, which lifts the masks before its end."""

from typing import Annotated

from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.backend import Backend
from sparsefront.recovery.base import RecoverySetup
from sparsefront.schedule.one_shot import OneShot

DenseAfter = Annotated[float | None, Field(gt=0, lt=1, description="null: the masks stay")]
"""Fraction of the optimizer steps after which the masks are lifted."""
KEY = "recovery.dense_after"


def check_dense_after(value: float, setup: RecoverySetup, backend: Backend) -> None:
    """Check that the masks can be lifted.

    Raises:
        InvalidSetting: key `recovery.dense_after`, with the reason.
    """
    pattern, schedule = setup.pruning.pattern, setup.pruning.schedule
    if not isinstance(schedule, OneShot):
        allowed = f"lifts masks that do not change before, those of schedule={OneShot.name}, not of {schedule.name}"
    elif pattern.takes_blocks:
        allowed = f"lifts masks, and pattern={pattern.name} takes whole blocks out of the network: leave it null"
    elif backend != "dense":
        allowed = f"trains the whole network on under recovery.backend=dense, not {backend}"
    else:
        return
    raise InvalidSetting(KEY, value, allowed)


def first_dense_step(dense_after: float, steps: int) -> int:
    """The optimizer step, from 0, before which the masks are lifted; at least one step comes before it and one after.

    Raises:
        InvalidSetting: there is only one step.
    """
    if steps < 2:
        allowed = f"needs two optimizer steps or more, and the recovery takes {steps}"
        raise InvalidSetting(KEY, dense_after, allowed)
    return min(max(1, round(dense_after * steps)), steps - 1)
