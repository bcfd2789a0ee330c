"""n:m sparsity: exactly n weights kept of every m consecutive ones along K."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting
from sparsefront.masks.boundaries import Boundaries
from sparsefront.masks.permutation import Permutation
from sparsefront.patterns.base import Step
from sparsefront.patterns.structure.blocks import BlockPattern, BlockStep
from sparsefront.patterns.structure.channel_permutation import permuted_inputs
from sparsefront.patterns.structure.transposable import SIDE, TransposableStep
from sparsefront.patterns.structure.window import Window, WindowSize

TRANSPOSABLE = Window(2, SIDE)


@settings_class()
class NM(BlockPattern):
    """Keep the n most important of every m consecutive weights along K; 2:4 is n=2, m=4.

    n counts the kept weights (SparseGPT and Wanda count the removed ones). Convolutions are windowed along their
    inputs kh*kw*C_in: a window holds neighboring channels of one tap where m divides C_in, as NVIDIA's ASP has it, and
    spans taps where it does not. "VW-16" of the Tile-Wise talk is this pattern with m=16.

    Args:
        n: kept per window; None derives it from the sparsity.
        m: window; None takes the smallest from 4 to 64 that divides K and brings n/m within 0.01 of the density.
        permutation: "search" forms the windows from the inputs in an order found to keep more importance (see
            `channel_permutation`); "none" takes them as they are. The order lives in storage, so no other layer changes;
            a kernel reads X through it.
        permutation_rounds: bounds that search.
        transposable: 2:4 in both directions: 4x4 tiles with two weights kept in every row and every column, so that W and
            its transpose (the backward pass) are both 2:4. Of a tile's 90 masks the one that keeps most importance is
            taken. Without it 2:4 runs along strips of a row.
    Source: Lin et al., "Efficient GPU Kernels for N:M-Sparse Weights in Deep Learning" (nmSPARSE), which extends
        NVIDIA's ASP from 2:4 to any n:m; each window is decided alone, so layers are not ranked together. Strips and tiles:
        the PyTorch talk, whose transposable tiles are those of Hubara et al., NeurIPS 2021.
    """

    n: Annotated[PositiveInt | None, Field(description="null: from the sparsity")] = None
    m: WindowSize = None
    permutation: Literal["none", "search"] = "none"
    permutation_rounds: PositiveInt = 10
    transposable: bool = False
    name: ClassVar[str] = "n_m"

    def __post_init__(self) -> None:
        if self.n is not None and self.m is None:
            raise InvalidSetting("n", self.n, "null while m is null: n alone is no window")
        if self.n is not None and self.n > self.m:
            raise InvalidSetting(
                "n", self.n, f"a whole number from 1 to m={self.m}, or null to derive it from the sparsity"
            )
        if not self.transposable:
            return
        for key, only in TRANSPOSABLE._asdict().items():
            if getattr(self, key) not in (None, only):
                raise InvalidSetting(key, getattr(self, key), f"{only} or null with transposable: its tiles are 2:4")
        if self.permutation != "none":
            allowed = "none with transposable: there is no search for an order of its tiles"
            raise InvalidSetting("permutation", self.permutation, allowed)

    @property
    def block(self) -> tuple[int, int]:
        return 1, 1

    @property
    def balanced(self) -> bool:
        return True

    @property
    def single_weights(self) -> bool:
        return not self.transposable

    @property
    def swaps_within(self) -> Literal["window", "row"] | None:
        return None if self.transposable else "window"

    @property
    def order_searched_by(self) -> str | None:
        return "pattern.permutation" if self.permutation == "search" else None

    @property
    def window_settings(self) -> dict[str, int | None]:
        return TRANSPOSABLE._asdict() if self.transposable else {"n": self.n, "m": self.m}

    def check_sparsity(self, sparsity: float) -> None:
        if self.transposable and not TRANSPOSABLE.expresses(sparsity):
            raise InvalidSetting(
                "transposable", True, f"4x4 tiles keep 2 of every 4 both ways: sparsity 0.5, not {sparsity:g}"
            )
        super().check_sparsity(sparsity)

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        if self.transposable and shape[0] % SIDE:
            return f"outputs {shape[0]} are not a multiple of {SIDE}, the side of a transposable tile"
        return super().unsupported_reason(shape, sparsity)

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        if self.permutation == "none":
            return None
        order = permuted_inputs(importance, self.window(tuple(importance.shape), sparsity), self.permutation_rounds)
        return None if order is None else Permutation(inputs=order)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        steps = super().steps(sparsity, shape, final_sparsity)
        return tuple(map(_in_tiles, steps)) if self.transposable else steps

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "n_m", self.window(shape, sparsity)._asdict()

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        super().check_structure(mask, sparsity)
        if self.transposable:
            kept = mask.reshape(-1, SIDE, mask.shape[1]).sum(dim=1)
            if (kept != TRANSPOSABLE.n).any():
                row, column = (int(i) for i in (kept != TRANSPOSABLE.n).nonzero()[0])
                raise ValueError(
                    f"n_m: column {column} of the tiles in rows {row * SIDE} to {row * SIDE + SIDE - 1} keeps "
                    f"{int(kept[row, column])} of {SIDE}, not {TRANSPOSABLE.n}"
                )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        windows = super().boundaries(mask, sparsity)
        return replace(windows, rows=range(SIDE, mask.shape[0], SIDE)) if self.transposable else windows


def _in_tiles(step: BlockStep) -> TransposableStep:
    """The step whose tiles keep, per row and column, what the step's windows keep."""
    return TransposableStep(step.target, step.window.n)
