"""The measured products, by name, and the X shared by all providers of a comparison."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.bench.correctness import DTYPES, Reference, reference_product
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem

# (K, N) of nmSPARSE's list: "Efficient GPU Kernels for N:M-Sparse Weights in Deep Learning", MLSys 2023
INPUTS_AND_OUTPUTS = (
    (1024, 1024),
    (2048, 2048),
    (4096, 4096),
    (8192, 8192),
    (1024, 4096),
    (4096, 1024),
    (5120, 20480),
    (20480, 5120),
)
SMALL_MS = (2, 4, 8, 16, 32, 64)
VIT_L_TOKENS = 256 * 197  # images times tokens
# batch sweep: the products of BERT's encoder (attention, MLP up and down), for batches of 128 tokens each
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SEQUENCE_LENGTH = 128
BERT_WIDTHS = (768, 1024)  # base, large


@dataclass(frozen=True)
class Shape:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ, named as in its source list."""

    name: str
    m: int
    k: int
    n: int


def nmsparse_shapes() -> list[Shape]:
    """M1 to M32: M = 1 for all (K, N), then 256, 1024 and 4096 for each."""
    sizes = [(1, k, n) for k, n in INPUTS_AND_OUTPUTS]
    sizes += [(m, k, n) for k, n in INPUTS_AND_OUTPUTS for m in (256, 1024, 4096)]
    return [Shape(f"M{number}", *size) for number, size in enumerate(sizes, start=1)]


def batch_shapes() -> list[Shape]:
    """The products of BERT's body at each batch: "batch8-768x3072" has M = 8 · 128 tokens."""
    sizes = [(k, n) for width in BERT_WIDTHS for k, n in ((width, width), (width, 4 * width), (4 * width, width))]
    return [Shape(f"batch{batch}-{k}x{n}", batch * SEQUENCE_LENGTH, k, n) for batch in BATCHES for k, n in sizes]


def all_shapes() -> list[Shape]:
    """nmSPARSE's list, more small M, the MLP of ViT-L on 256 images, and the batch sweep."""
    small_m = [Shape(f"small_m{m}-{k}x{n}", m, k, n) for m in SMALL_MS for k, n in INPUTS_AND_OUTPUTS]
    vit = [Shape("vit_l-up", VIT_L_TOKENS, 1024, 4096), Shape("vit_l-down", VIT_L_TOKENS, 4096, 1024)]
    return nmsparse_shapes() + small_m + vit + batch_shapes()


def any_shape(text: str) -> Shape:
    """Parse a shape MxKxN such as 77x4096x11008, which is also its name.

    Raises:
        ValueError: not three integers of at least 1.
    """
    sizes = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if sizes is None:
        raise ValueError(f"a shape is MxKxN in whole numbers of at least 1, such as 77x4096x11008, not {text!r}")
    return Shape(text, *map(int, sizes.groups()))


def chosen_shapes(
    names: Iterable[str] = (),
    *,
    sized: Iterable[Shape] = (),
    m: Iterable[int] = (),
    k: Iterable[int] = (),
    n: Iterable[int] = (),
    batch: Iterable[int] = (),
) -> list[Shape]:
    """The shapes that pass all filters; empty filters pass everything, and without any, only nmSPARSE's list.

    Args:
        sized: additional shapes; without filters, they alone.
        names: of shapes, or patterns of names such as "small_m8-*".
        batch: only the batch sweep, at these batches. Size filters alone never select from it, since it repeats sizes.
    Raises:
        ValueError: an unknown name, or filters that pass nothing.
    """
    names, m, k, n, batch = tuple(names), tuple(m), tuple(k), tuple(n), tuple(batch)
    sized = list(dict.fromkeys(sized))
    if sized and not (names or m or k or n or batch):
        return sized
    shapes = all_shapes()
    unknown = [name for name in names if not any(fnmatchcase(shape.name, name) for shape in shapes)]
    if unknown:
        raise ValueError(f"no shape is called {', '.join(unknown)}; there are {', '.join(s.name for s in shapes)}")
    if batch:
        candidates = [shape for shape in batch_shapes() if shape.m // SEQUENCE_LENGTH in batch]
    elif names:
        candidates = shapes
    elif m or k or n:
        candidates = [shape for shape in shapes if shape not in batch_shapes()]
    else:
        candidates = nmsparse_shapes()
    matches = [
        shape
        for shape in candidates
        if (not names or any(fnmatchcase(shape.name, name) for name in names))
        and (not m or shape.m in m)
        and (not k or shape.k in k)
        and (not n or shape.n in n)
    ]
    if not matches:
        raise ValueError(f"no shape passes the filters: names {names}, m {m}, k {k}, n {n}, batch {batch}")
    return matches + sized


@dataclass(frozen=True)
class Setting:
    """One shape at one dtype and sparsity on one device; X is drawn once."""

    shape: Shape
    dtype_name: str
    sparsity: float
    device: torch.device
    x: Tensor = field(init=False)  # [M, K]
    _copies: dict[tuple[bool, int, int], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        x = torch.randn(self.shape.m, self.shape.k, device=self.device, dtype=self.dtype)
        object.__setattr__(self, "x", x)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.dtype_name]

    def problem(self, layout: str) -> Problem:
        """The product as passed to kernels."""
        return Problem(self.shape.m, self.shape.k, self.shape.n, self.dtype, self.device, layout)

    def weight(self) -> Tensor:
        """A new dense [N, K]."""
        return torch.randn(self.shape.n, self.shape.k, device=self.device, dtype=self.dtype)

    def x_in(self, layout: str, copy: int, *, rows: int | None = None) -> Tensor:
        """X in a layout, in separate memory per copy index; shared by providers.

        Args:
            rows: M padded with zeros, for kernels that require it; M by default.
        """
        by_feature, rows = layout in X_FEATURE_MAJOR, rows or self.shape.m
        key = (by_feature, rows, copy)
        if key not in self._copies:
            x = pad(self.x, (0, 0, 0, rows - self.shape.m))
            self._copies[key] = x.t().contiguous() if by_feature else x.clone()
        return self._copies[key]

    def reference(self, weight: Tensor) -> Reference:
        """X · Wᵀ in float64; for a large product, some rows."""
        return reference_product(self.x, weight)

    @property
    def activation_bytes(self) -> int:
        """Bytes of X and Y."""
        return self.shape.m * (self.shape.k + self.shape.n) * self.dtype.itemsize
