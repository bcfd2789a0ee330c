"""The products that are measured, by name."""

from collections.abc import Iterable
from dataclasses import dataclass

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
SKINNY_M = (2, 4, 8, 16, 32, 64)
VIT_L_TOKENS = 256 * 197  # images times tokens


@dataclass(frozen=True)
class Shape:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ, under the name of the list it comes from."""

    name: str
    m: int
    k: int
    n: int


def nmsparse_shapes() -> list[Shape]:
    """M1 to M32: first M = 1 for all (K, N), then 256, 1024 and 4096 for each."""
    sizes = [(1, k, n) for k, n in INPUTS_AND_OUTPUTS]
    sizes += [(m, k, n) for k, n in INPUTS_AND_OUTPUTS for m in (256, 1024, 4096)]
    return [Shape(f"M{number}", *size) for number, size in enumerate(sizes, start=1)]


def all_shapes() -> list[Shape]:
    """nmSPARSE's list, more small M, and the MLP of ViT-L on 256 images."""
    skinny = [Shape(f"skinny{m}-{k}x{n}", m, k, n) for m in SKINNY_M for k, n in INPUTS_AND_OUTPUTS]
    vit = [Shape("vit_l-up", VIT_L_TOKENS, 1024, 4096), Shape("vit_l-down", VIT_L_TOKENS, 4096, 1024)]
    return nmsparse_shapes() + skinny + vit


def chosen_shapes(names: Iterable[str] = (), *, m: Iterable[int] = (), k: Iterable[int] = (), n: Iterable[int] = ()):
    """The shapes that pass all filters; an empty filter lets everything pass, and without any only nmSPARSE's list.

    Raises:
        ValueError: a name that no shape has, or filters that leave nothing.
    """
    names, m, k, n = tuple(names), tuple(m), tuple(k), tuple(n)
    shapes = all_shapes()
    if unknown := sorted(set(names) - {shape.name for shape in shapes}):
        raise ValueError(f"no shape is called {', '.join(unknown)}; there are {', '.join(s.name for s in shapes)}")
    wanted = shapes if names or m or k or n else nmsparse_shapes()
    found = [
        shape
        for shape in wanted
        if (not names or shape.name in names)
        and (not m or shape.m in m)
        and (not k or shape.k in k)
        and (not n or shape.n in n)
    ]
    if not found:
        raise ValueError(f"no shape passes the filters: names {names}, m {m}, k {k}, n {n}")
    return found
