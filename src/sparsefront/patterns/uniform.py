"""Every row of a layer keeps the same number of weights or blocks."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Groups, signed_norm
from sparsefront.patterns.base import Step
from sparsefront.patterns.blocks import BlockPattern, in_blocks
from sparsefront.settings_class import settings_class


@dataclass(frozen=True)
class RankStep:
    """Keep or prune ranks: rank r is the column of the r-th best blocks of all block rows.

    Args:
        target: see `Step`.
        side: of a block; must divide the layer.
        per_row: divide the l2 norm of a rank by the square root of its length (rms).
    """

    target: float
    side: int
    per_row: bool = False

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [K / side], one per rank, best first."""
        blocks, alive = self._blocks(importance), self._alive(mask)
        ranked = blocks.masked_fill(~alive, -torch.inf).sort(dim=1, descending=True).values
        pruned = torch.arange(ranked.shape[1], device=mask.device) >= alive.sum(dim=1).max()
        scores = signed_norm(ranked.masked_fill_(pruned, 0.0), (0,))
        if self.per_row:
            scores = scores / ranked.shape[0] ** 0.5
        return Groups(scores.masked_fill(pruned, -torch.inf), ranked.shape[0] * self.side**2)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Each row keeps its `count` best blocks, where `count` ranks survive; ties go to the lower index."""
        count = int(kept.sum())
        if count == 0:
            return torch.zeros_like(mask)
        alive = self._alive(mask)
        blocks = self._blocks(importance).masked_fill(~alive, -torch.inf)
        # Everything above the count-th best of each row, plus the first of its ties: cheaper than a stable sort.
        limit = blocks.kthvalue(blocks.shape[1] - count + 1, dim=1, keepdim=True).values
        better, equal = blocks > limit, (blocks == limit) & alive
        tie_quota = count - better.sum(dim=1, keepdim=True, dtype=torch.int32)
        chosen = better | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= tie_quota))
        return chosen.repeat_interleave(self.side, dim=0).repeat_interleave(self.side, dim=1) & mask

    def _blocks(self, importance: Tensor) -> Tensor:
        """Block scores [N / side, K / side]; single weights keep their importance unchanged."""
        if self.side == 1:
            return importance
        return signed_norm(in_blocks(importance, (self.side, self.side)), (1, 3))

    def _alive(self, mask: Tensor) -> Tensor:
        """Which blocks are not pruned yet, bool like `_blocks`."""
        return mask if self.side == 1 else in_blocks(mask, (self.side, self.side)).any(dim=3).any(dim=1)


@settings_class()
class Uniform(BlockPattern):
    """Keep the same number of the best weights in every row of a layer.

    Each row is sorted by importance, best first; the score of a rank is the l2 norm of that column of the sorted matrix.
    One threshold over the ranks of all layers determines how many survive in each layer. With blocks, the l2 norm of a block
    is what is sorted, and every row of blocks keeps the same number.

    With allocation=per_layer every layer keeps the same fraction: the per-output comparison group of Wanda (Sun et al.,
    "A Simple and Effective Pruning Approach for Large Language Models", 2023, section 3).

    Args:
        granularity: side of a block: 1, 2 or 4; must divide the layer.
        aggregate: l2, the norm of a rank as in the paper, or rms, which does not favor layers with many rows.
    Source: Muralidharan, "Uniform Sparsity in Deep Neural Networks", 2023, sections 2.2 and 4.2 ("Blocked Uniform
        Sparsity"). The paper sorts by |w|; here any importance is sorted.
    """

    granularity: PositiveInt = 1
    aggregate: Annotated[Literal["l2", "rms"], Field(description="the norm of a rank column, or the same per row")] = (
        "l2"
    )
    name: ClassVar[str] = "uniform"
    uses_granularity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.granularity not in (1, 2, 4):  # not a Literal, which would accept true as 1
            raise InvalidSetting("granularity", self.granularity, "1, 2 or 4, the side of a block")

    @property
    def block(self) -> tuple[int, int]:
        return self.granularity, self.granularity

    @property
    def exchanges_within(self) -> Literal["window", "row"] | None:
        return "row" if self.granularity == 1 else None

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        return (RankStep(sparsity, self.granularity, per_row=self.aggregate == "rms"),)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "ell", {"block": self.granularity}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """One rank: one block in every row of blocks."""
        return shape[0] * self.granularity

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        super().check_structure(mask, sparsity)
        counts = in_blocks(mask, self.block)[:, 0, :, 0].sum(dim=1)
        if (counts != counts[0]).any():
            row = int((counts != counts[0]).nonzero()[0])
            unit = "weights" if self.granularity == 1 else "blocks"
            raise ValueError(f"uniform: row {row} of {unit} keeps {int(counts[row])}, row 0 keeps {int(counts[0])}")
