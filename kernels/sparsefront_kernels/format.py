"""The base class of storage formats of sparse weights."""

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SparseFormat(ABC):
    """A weight W[N, K] stored by a pattern's structure: some tensors (including `values`) and a few numbers.

    Subclasses are frozen dataclasses. Every instance, however created, has passed its family's `check`, so that kernels may
    trust its indices.

    Args:
        shape: (N, K) = (outputs, inputs) of the weight.
    """

    family: ClassVar[str]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if len(self.shape) != 2 or min(self.shape) < 1:
            raise ValueError(f"{self.family}: shape must be [N, K] with both at least 1, not {list(self.shape)}")
        self.check()

    @classmethod
    @abstractmethod
    def from_dense(cls, *weight_and_mask: Any, **parameters: Any) -> Self:
        """Store the kept weights: `from_dense(weight, mask, **parameters)`.

        Args:
            weight: [N, K], any float dtype and device. Pruned values are dropped.
            mask: bool [N, K] on the same device, True = keep.
            parameters: of the family (tile width, block shape, n and m).
        Raises:
            ValueError: the mask does not have the family's structure; names where and by how much.
        """

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The weight as [N, K] with exact zeros; kept weights are bitwise those passed to `from_dense`."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError naming the first broken invariant and its value."""

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], meta: dict[str, Any]) -> Self:
        """Rebuild from the results of `tensors()` and `meta()`, for example read from a file.

        Raises:
            ValueError: a part is missing or unknown, or an invariant is violated.
        """
        parts = {**meta, **tensors}
        known = {field.name for field in fields(cls)}
        missing = sorted({field.name for field in fields(cls) if field.default is MISSING} - parts.keys())
        unknown = sorted(parts.keys() - known)
        if missing or unknown:
            raise ValueError(f"{cls.family}: stored weight lacks {missing} and has the unknown {unknown}")
        return cls(**{name: tuple(part) if isinstance(part, list) else part for name, part in parts.items()})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by field name, contiguous, ready for a safetensors file."""
        return {field.name: part for field in fields(self) if isinstance(part := getattr(self, field.name), Tensor)}

    def meta(self) -> dict[str, Any]:
        """All other fields as plain JSON (tuples as lists); optional tensors that are None are omitted."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        rest = {name: part for name, part in parts.items() if not isinstance(part, Tensor) and part is not None}
        return {name: list(part) if isinstance(part, tuple) else part for name, part in rest.items()}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same weight on another device or with values in another dtype; indices keep theirs."""
        moved: dict[str, Any] = {
            name: part.to(device=device, dtype=dtype if part.is_floating_point() else None)
            for name, part in self.tensors().items()
        }
        return replace(self, **moved)

    def scaled(self, scale: Tensor) -> Self:
        """Multiply the row of each output by a factor, in W's dtype.

        Args:
            scale: [N], float.
        Raises:
            ValueError: the format has more than one tensor of values.
        """
        tensors = self.tensors()
        floats = [name for name, part in tensors.items() if part.is_floating_point()]
        if len(floats) != 1:
            raise ValueError(f"{self.family}: weights lie in several tensors: {', '.join(floats)}")
        values = tensors["values"]
        # numbers instead of the weights show where each of them is; other stored values are not changed
        numbered = torch.arange(1, values.numel() + 1, device=values.device).view_as(values)
        number = type(self).from_tensors(tensors | {"values": numbered}, self.meta()).to_dense()
        factor = torch.ones(values.numel() + 1, device=values.device)
        factor[number] = scale.float().to(values.device)[:, None].expand(*number.shape)
        scaled = (values.float() * factor[1:].view_as(values)).to(values.dtype)
        return type(self).from_tensors(tensors | {"values": scaled}, self.meta())

    @property
    def nbytes(self) -> int:
        """Total bytes of values and indices."""
        return sum(part.nbytes for part in self.tensors().values())

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype  # type: ignore[attr-defined]  # every family stores `values`

    @property
    def device(self) -> torch.device:
        return self.values.device  # type: ignore[attr-defined]


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """(N, K) of a matrix."""
    n, k = weight.shape
    return n, k


def check_weight_and_mask(weight: Tensor, mask: Tensor) -> None:
    """Raise ValueError unless weight is a float [N, K] and mask a bool of the same shape on the same device."""
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(f"weight must be a float [N, K], not {weight.dtype} {list(weight.shape)}")
    if mask.dtype != torch.bool or mask.shape != weight.shape:
        raise ValueError(f"mask must be bool {list(weight.shape)} as the weight, not {mask.dtype} {list(mask.shape)}")
    if mask.device != weight.device:
        raise ValueError(f"mask is on {mask.device}, the weight on {weight.device}")


def zero_where_pruned(weight: Tensor, mask: Tensor) -> Tensor:
    """[N, K] with +0.0 where pruned. Multiplying by the mask would give -0.0, and NaN for infinite weights."""
    return torch.where(mask, weight.detach(), torch.zeros((), dtype=weight.dtype, device=weight.device))
