"""Options go together by what they declare about themselves, so that one of a user's own is treated like ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.errors import InvalidSetting
from sparsefront.importance.movement import Movement
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.none import NoRecovery
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.iterative import Iterative


@dataclass(frozen=True)
class Own(PerLayerAllocation):
    name: ClassVar[str] = "own"

    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        return dict.fromkeys(weight_shapes, sparsity)


@dataclass(frozen=True)
class Expressible(Own):
    any_sparsity: ClassVar[bool] = False
    fixed_by_first_scores: ClassVar[bool] = False


def test_own_allocation_meets_its_patterns():
    Own().check_pattern(ElementWise())
    for pattern in (NM(), Tile24()):
        Expressible().check_pattern(pattern)
        with pytest.raises(InvalidSetting, match=rf"allocation=own: pattern {pattern.name} can meet .*per_layer.*any"):
            Own().check_pattern(pattern)


class Halfway(Schedule):
    """Half of the way at once, the rest in the middle of training."""

    name: ClassVar[str] = "halfway"

    def round_sparsities(self, final: float) -> tuple[float, ...]:
        return (0.0,)

    def sparsity_at(self, progress: float, final: float) -> float:
        return final if progress >= 0.5 else 0.0

    def updates_of(self, total_steps: int, final: float) -> dict[int, float]:
        return {total_steps // 2: final}


def test_own_schedule_is_followed():
    assert Halfway().in_training and not Iterative().in_training
    Finetune().check_schedule(Halfway(), 0.5)
    for recovery in (NoRecovery(), LearningRateRewind()):
        with pytest.raises(InvalidSetting, match=rf"recovery={recovery.name}: goes with .*, not with halfway"):
            recovery.check_schedule(Halfway(), 0.5)


def test_fixed_scores_reject_later_ones():
    with pytest.raises(InvalidSetting, match="allocation=own: is fixed by scores before any training"):
        Movement().check(PruningSettings(ElementWise(), 0.5, allocation=Own(), schedule=Halfway()))
    Movement().check(PruningSettings(ElementWise(), 0.5, allocation=Expressible(), schedule=Halfway()))
