"""Which weights of the columns that a sweep has reached are kept: given beforehand, or chosen from what they then cost."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sparsefront.masks.selection import keep_best_of_last


class Selection(Protocol):
    """Decides over `span` neighboring columns at once, when the sweep reaches the first of them."""

    @property
    def span(self) -> int | None:
        """Columns decided together; None = all those of a block of the sweep."""
        ...

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        """Bool [N, columns], True = keep, from the saliency [N, columns] of the columns from `first` on."""
        ...


@dataclass(frozen=True, eq=False)
class Given:
    """The mask stands."""

    mask: Tensor  # bool [N, K]
    span: int | None = None

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        return self.mask[:, first : first + saliency.shape[1]]


@dataclass(frozen=True, eq=False)
class InWindows:
    """The n costliest weights of every m consecutive ones, chosen window by window.

    Args:
        n, m: kept weights per window; m divides K.
        allowed: bool [N, K]: nothing else is kept; at least n per window.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 3.4 (n:m, with n the zeros there).
    """

    n: int
    m: int
    allowed: Tensor

    @property
    def span(self) -> int:
        return self.m

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        allowed = self.allowed[:, first : first + self.m]
        return keep_best_of_last(saliency.masked_fill(~allowed, -torch.inf), self.n)


@dataclass(frozen=True, eq=False)
class InBlocks:
    """The costliest weights of a whole block of columns, all rows together; every block keeps the same share.

    The share is of the weights that are allowed, so that it can always be met, and the counts add up to `keeping`.

    Args:
        keeping: weights kept in the whole matrix.
        allowed: bool [N, K]: nothing else is kept; holds at least `keeping`.
    Source: Frantar and Alistarh, "SparseGPT", 2023, section 3.3 (adaptive mask selection, blocks of 128 columns).
    """

    keeping: int
    allowed: Tensor
    span: int | None = None

    @cached_property
    def _kept_until(self) -> list[int]:
        """Weights kept in all columns before this one, for K + 1 columns; the last is `keeping`."""
        allowed_until = [0, *self.allowed.sum(dim=0).cumsum(dim=0).tolist()]
        return [self.keeping * allowed // max(1, allowed_until[-1]) for allowed in allowed_until]

    def keep(self, saliency: Tensor, first: int) -> Tensor:
        columns = saliency.shape[1]
        allowed = self.allowed[:, first : first + columns]
        count = self._kept_until[first + columns] - self._kept_until[first]
        return keep_best_of_last(saliency.masked_fill(~allowed, -torch.inf).flatten(), count).reshape(allowed.shape)
