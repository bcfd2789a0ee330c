"""From the work of a kernel to its time: the one formula of the model, whatever the kernel.

The method is that of "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU" (2025): a product is
followed from the device down to what one block does in a step, and each level is held against the rate that the device
has there. What each kernel does is written down in the modules of the kernels; what is fitted to measurements are the
constants below, for each kernel and number format.

    step  = step + (math ^ p + load ^ p) ^ (1 / p)      math: of a step's arithmetic; load: of its bytes from L2
    block = item + steps · step + its share of Y
    time  = launch + rounds · block + copies of X and Y in the other layout, at least launch + bytes / memory rate
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

Constants = Mapping[str, float]

# name: (where a fit begins, least, most)
CONSTANTS = {
    "launch": (2.0, 0.2, 8.0),  # us, of a launch, and of filling and emptying the device
    "item": (1.0, 0.001, 10.0),  # us, of a block beyond its steps
    "step": (0.1, 0.001, 3.0),  # us, of a step beyond arithmetic and loads: barriers, lists
    "math": (0.9, 0.05, 1.1),  # share of the dense rate that a block's arithmetic reaches
    "l2_gb_per_s": (7000.0, 500.0, 30000.0),  # from L2 to all processors
    "overlap": (2.0, 1.0, 8.0),  # p: 1 where arithmetic and loads take turns, large where one hides the other
    "split": (0.7, 0.001, 8.0),  # us, of a further block that shares the inputs of one piece of Y
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
        steps: of a block, in the mean over blocks.
        flops: of a step.
        step_bytes: that a step loads from L2.
        stored_bytes: of Y, of a block.
        splits: blocks that share the inputs of one piece of Y.
    """

    blocks: int
    at_once: int
    steps: float
    flops: float
    step_bytes: float
    stored_bytes: float
    splits: int = 1


@dataclass(frozen=True)
class Work:
    """What a kernel does for a product.

    Args:
        tilings: those that it chooses from; the fastest counts, as if it were tuned.
        tera: FLOP in a microsecond and device at the dense rate of the number format, in 10^6: TFLOP/s.
        memory_us: of the least bytes, at the copy rate.
        longest: the longest block over the mean one.
        turned_x_bytes, turned_y_bytes: read and written to bring X, or Y, into the other layout; 0 for none.
        scattered: whether X is gathered element by element.
    """

    tilings: tuple[Tiling, ...]
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
    tiled = min(_tiled_us(work, tiling, constants) for tiling in work.tilings)
    total = max(constants["launch"] + tiled, constants["launch"] + work.memory_us / constants["memory"])
    if work.turned_x_bytes:
        total += constants["turn_x"] + work.turned_x_bytes / constants["turn_x_gb_per_s"] / 1e3
    if work.turned_y_bytes:
        total += constants["turn_y"] + work.turned_y_bytes / constants["turn_y_gb_per_s"] / 1e3
    return total


def _tiled_us(work: Work, tiling: Tiling, constants: Constants) -> float:
    l2_bytes_per_us = constants["l2_gb_per_s"] * 1e3 / tiling.at_once  # of one block
    math = tiling.flops / (work.tera * 1e6 * constants["math"] / tiling.at_once)
    load = tiling.step_bytes / l2_bytes_per_us * (constants["scatter"] if work.scattered else 1.0)
    power = constants["overlap"]
    most = max(math, load, 1e-12)
    step = constants["step"] + most * ((math / most) ** power + (load / most) ** power) ** (1 / power)
    block = constants["item"] + tiling.steps * step + tiling.stored_bytes / l2_bytes_per_us
    return _rounds(work, tiling) * block + constants["split"] * (tiling.splits - 1)


def _rounds(work: Work, tiling: Tiling) -> float:
    """Mean blocks that one place of the device works through, one after the other."""
    if work.longest == 1.0:
        return ceil(tiling.blocks / tiling.at_once)
    # longest first: nothing waits for whole rounds, but the last block to end is a short one of its own
    return max(work.longest, tiling.blocks / tiling.at_once + (1 - 1 / work.longest) / 2)
