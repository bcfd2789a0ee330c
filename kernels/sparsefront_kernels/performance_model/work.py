"""From the work of a kernel to its predicted latency: one formula for all kernels.

The method is that of "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU" (2025): a product is
followed from the device down to what one block does in a k-block, and each level is compared with the rate that the device
has there. What each kernel does is written down in `kernel_latency.py`; what is fitted to measurements are the
constants below, for each kernel and number format.

    k-block = k_block + (math ^ p + load ^ p) ^ (1 / p)      math: of a k-block's arithmetic; load: of its bytes from L2
    block = work_tile + k-blocks · k-block + its share of Y
    time  = launch + rounds · block + copies of X and Y in the other layout, at least launch + bytes / memory rate

Blocks that share an SM share its rates; a last round with fewer blocks is the faster for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

Constants = Mapping[str, float]

# name: (where a fit begins, least, most)
CONSTANTS = {
    "launch": (2.0, 0.2, 8.0),  # us, of a launch, and of filling and emptying the device
    "work_tile": (1.0, 0.001, 10.0),  # us, of a block beyond its k-blocks
    "k_block": (0.1, 0.001, 3.0),  # us, of a k-block beyond arithmetic and loads: barriers, lists
    "math": (0.9, 0.05, 1.1),  # share of the dense rate that a block's arithmetic reaches
    "l2_gb_per_s": (7000.0, 500.0, 30000.0),  # from L2 to all SMs
    "overlap": (2.0, 1.0, 8.0),  # p: 1 where arithmetic and loads take turns, large where one hides the other
    "split": (0.7, 0.001, 8.0),  # us, of a further block that shares the inputs of one work tile
    "memory": (0.9, 0.1, 1.1),  # share of the copy rate, where bytes bind the whole
    "turn_x": (2.0, 0.001, 8.0),  # us, of bringing X into the kernel's layout, beyond its bytes
    "turn_x_gb_per_s": (2500.0, 100.0, 20000.0),
    "turn_y": (2.0, 0.001, 8.0),
    "turn_y_gb_per_s": (2500.0, 100.0, 20000.0),
    "scatter": (1.0, 0.1, 16.0),  # factor on the loads where X is not gathered in runs
}
STARTS = {name: start for name, (start, _, _) in CONSTANTS.items()}
_TURN_X, _TURN_Y = ("turn_x", "turn_x_gb_per_s"), ("turn_y", "turn_y_gb_per_s")


@dataclass(frozen=True)
class Tiling:
    """One way to cut a product into blocks.

    Args:
        blocks: of the grid.
        at_once: blocks that run at a time on the whole device.
        k_blocks: of a block, in the mean over blocks.
        flops: of a k-block.
        k_block_bytes: that a k-block loads from L2.
        stored_bytes: of Y, of a block.
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
    """What a kernel does for a product.

    Args:
        tilings: those that it chooses from; the fastest counts, as if it were tuned.
        num_sms: of the device.
        tera: FLOP in a microsecond and device at the dense rate of the number format, in 10^6: TFLOP/s.
        memory_us: of the least bytes, at the copy rate.
        longest: the longest block over the mean one.
        turned_x_bytes, turned_y_bytes: read and written to bring X, or Y, into the other layout; 0 for none.
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
        """Names of the constants that its time depends on."""
        unused = (() if self.turned_x_bytes else _TURN_X) + (() if self.turned_y_bytes else _TURN_Y)
        return CONSTANTS.keys() - {*unused, *(() if self.scattered else ("scatter",))}


def time_us(work: Work, constants: Constants) -> float:
    """The predicted time of a call."""
    return float(Works.of([work]).times_us(constants)[0])


@dataclass(frozen=True)
class Works:
    """Many works as tensors, so that constants are tried on all of them at once.

    Args:
        tilings: name of a field of `Tiling` → float64 [works, tilings]; works with fewer repeat their last one.
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
            tilings,
            {name: torch.tensor([float(getattr(work, name)) for work in works]).double() for name in single},
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
        # longest first: nothing waits for whole rounds, but the last block to end is a short one of its own
        uneven = torch.maximum(longest, blocks / at_once + (1 - 1 / longest) / 2) * whole
        return torch.where(longest > 1, uneven, equal) + constants["split"] * (self.tilings["splits"] - 1)

    def _block_us(self, constants: Constants, running: Tensor) -> Tensor:
        """Of one block while so many run: those of an SM share it, and one alone has no more than its SM."""
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
