"""From the work of a kernel to its predicted latency: one formula for all kernels.

Method: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU" (2025). A product is followed from the
device down to the k-blocks of one block, and each level is compared with the device's rate there. `kernel_latency.py` has the
work of each kernel; the constants below are fitted to measurements per kernel and number format.

    k-block = k_block + (math ^ p + load ^ p) ^ (1 / p)      math: of a k-block's arithmetic; load: of its bytes from L2
    block = work_tile + k-blocks · k-block + its share of Y
    time  = launch + rounds · block + copies of X and Y in the other layout, at least launch + bytes / memory rate

Blocks that share an SM share its rates, so a last round with fewer blocks is faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

Constants = Mapping[str, float]

# name: (start of a fit, minimum, maximum)
CONSTANTS = {
    "launch": (2.0, 0.2, 8.0),  # us per launch, including filling and emptying the device
    "work_tile": (1.0, 0.001, 10.0),  # us per block besides its k-blocks
    "k_block": (0.1, 0.001, 3.0),  # us per k-block besides arithmetic and loads: barriers, lists
    "math": (0.9, 0.05, 1.1),  # fraction of the dense rate reached by a block's arithmetic
    "l2_gb_per_s": (7000.0, 500.0, 30000.0),  # from L2 to all SMs
    "overlap": (2.0, 1.0, 8.0),  # p: 1 if arithmetic and loads alternate, large if one hides the other
    "split": (0.7, 0.001, 8.0),  # us per further block that shares the inputs of one work tile
    "memory": (0.9, 0.1, 1.1),  # fraction of the copy rate, if memory-bound
    "turn_x": (2.0, 0.001, 8.0),  # us to change the layout of X, besides its bytes
    "turn_x_gb_per_s": (2500.0, 100.0, 20000.0),
    "turn_y": (2.0, 0.001, 8.0),
    "turn_y_gb_per_s": (2500.0, 100.0, 20000.0),
    "scatter": (1.0, 0.1, 16.0),  # factor on the loads if X is not gathered in runs
}
STARTS = {name: start for name, (start, _, _) in CONSTANTS.items()}
_TURN_X, _TURN_Y = ("turn_x", "turn_x_gb_per_s"), ("turn_y", "turn_y_gb_per_s")


@dataclass(frozen=True)
class Tiling:
    """One way to divide a product into blocks.

    Args:
        blocks: of the grid.
        at_once: concurrent blocks on the device.
        k_blocks: per block, on average.
        flops: per k-block.
        k_block_bytes: loaded from L2 per k-block.
        stored_bytes: of Y, per block.
        splits: blocks that share the inputs of one work tile.
    """

    blocks: int
    at_once: int
    k_blocks: float
    flops: float
    k_block_bytes: float
    stored_bytes: float
    splits: int = 1


@dataclass(frozen=True)
class Work:
    """The work of a kernel for a product.

    Args:
        tilings: from which the kernel chooses the fastest, as if tuned.
        num_sms: of the device.
        tera: dense rate of the number format, TFLOP/s.
        memory_us: time of the minimum bytes at the copy rate.
        longest: ratio of the longest block to the mean.
        turned_x_bytes, turned_y_bytes: read and written to change the layout of X, or Y; 0 if unchanged.
        scattered: whether X is gathered element by element.
    """

    tilings: tuple[Tiling, ...]
    num_sms: int
    tera: float
    memory_us: float
    longest: float = 1.0
    turned_x_bytes: float = 0.0
    turned_y_bytes: float = 0.0
    scattered: bool = False

    @property
    def constants(self) -> set[str]:
        """Names of the constants that affect its time."""
        unused = (() if self.turned_x_bytes else _TURN_X) + (() if self.turned_y_bytes else _TURN_Y)
        return CONSTANTS.keys() - {*unused, *(() if self.scattered else ("scatter",))}


def time_us(work: Work, constants: Constants) -> float:
    """The predicted time of a call."""
    return float(Works.of([work]).times_us(constants)[0])


@dataclass(frozen=True)
class Works:
    """Many works as tensors, to evaluate constants on all of them at once.

    Args:
        tilings: name of a field of `Tiling` → float64 [works, tilings]; padded by repeating the last one.
        works: name of a field of `Work` → float64 [works].
    """

    tilings: Mapping[str, Tensor]
    works: Mapping[str, Tensor]

    @classmethod
    def of(cls, works: Sequence[Work]) -> "Works":
        most = max(len(work.tilings) for work in works)
        padded = [(*work.tilings, *(work.tilings[-1:] * (most - len(work.tilings)))) for work in works]
        tilings = {
            part.name: torch.tensor([[float(getattr(one, part.name)) for one in line] for line in padded]).double()
            for part in fields(Tiling)
        }
        single = [part.name for part in fields(Work) if part.name != "tilings"]
        return cls(
            tilings, {name: torch.tensor([float(getattr(work, name)) for work in works]).double() for name in single}
        )

    def times_us(self, constants: Constants) -> Tensor:
        """float64 [works]."""
        work = self.works
        tiled = self._tiled_us(constants).amin(dim=1)
        total = constants["launch"] + torch.maximum(tiled, work["memory_us"] / constants["memory"])
        for side in ("x", "y"):
            if bool((moved := work[f"turned_{side}_bytes"]).any()):
                copy = constants[f"turn_{side}"] + moved / constants[f"turn_{side}_gb_per_s"] / 1e3
                total = total + torch.where(moved > 0, copy, 0.0)
        return total

    def _tiled_us(self, constants: Constants) -> Tensor:
        """[works, tilings]."""
        blocks, at_once, longest = self.tilings["blocks"], self.tilings["at_once"], self.works["longest"][:, None]
        rounds, rest = torch.div(blocks, at_once, rounding_mode="floor"), blocks % at_once
        whole = self._block_us(constants, torch.minimum(blocks, at_once))
        equal = rounds * whole + torch.where(rest > 0, self._block_us(constants, rest.clamp(min=1)), 0.0)
        # longest first: no whole rounds, but the last block to end is a short one
        uneven = torch.maximum(longest, blocks / at_once + (1 - 1 / longest) / 2) * whole
        return torch.where(longest > 1, uneven, equal) + constants["split"] * (self.tilings["splits"] - 1)

    def _block_us(self, constants: Constants, running: Tensor) -> Tensor:
        """Time of one block while `running` run: blocks on an SM share it, and a single one is limited to its SM."""
        tiling, work = self.tilings, {name: values[:, None] for name, values in self.works.items()}
        share = 1 / (work["num_sms"] * torch.ceil(running / work["num_sms"]))
        l2_bytes_per_us = constants["l2_gb_per_s"] * 1e3 * share
        math = tiling["flops"] / (work["tera"] * 1e6 * constants["math"] * share)
        load = tiling["k_block_bytes"] / l2_bytes_per_us
        if bool(work["scattered"].any()):
            load = torch.where(work["scattered"] > 0, load * constants["scatter"], load)
        power, most = constants["overlap"], torch.maximum(math, load).clamp(min=1e-12)
        k_block = most * ((math / most) ** power + (load / most) ** power) ** (1 / power) + constants["k_block"]
        return constants["work_tile"] + tiling["k_blocks"] * k_block + tiling["stored_bytes"] / l2_bytes_per_us
