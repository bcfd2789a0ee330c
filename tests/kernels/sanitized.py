r"""Tiny problems for compute-sanitizer: every CUDA kernel of this package, with launches that tuning may choose.

    compute-sanitizer --tool memcheck --kernel-name kernel_substring=n_m_small_m \
        python tests/kernels/sanitized.py [seconds] [beginning ...]

Kernels are those of the registry whose names begin so; all without one. The option keeps the tool off PyTorch's kernels;
results are compared on the CPU. Prints what ran, and ends with 1 where a result is wrong or no kernel could run. After
`seconds` it begins no further launch.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from in_layout import InLayout, every_layout
from random_problems import OCCASIONS, RandomProblem, draw
from sparsefront_kernels.cuda.thread_per_output import ThreadPerOutputLaunch

LARGEST = 130
LARGEST_OF_ONE_ROW = 1200  # costs little; more k-blocks than a ring has stages, which then are filled again
SEEDS = (1, 21, 11, 0, 5, 9, 17, 23, 31, 48, 55, 62)  # those first that fill rings again
FAMILIES = (  # how the names of kernels begin
    "gathered_sm90",
    "gathered_simt",
    "gathered_indexed",
    "gathered_small_m",
    "gathered_overlay",
    "gathered_2_4",
    "blocked",
    "n_m_small_m",
    "n_m_mma",
    "n_m_sm90",
    "ell_small_m",
    "ell_sm90",
    "csr_sm90",
)
# in the names of kernels that Triton compiles, and of those of others
NOT_OURS = ("triton", "rebuilt", "torch", "quack")


def cuda_kernels(beginnings: list[str]) -> list[InLayout]:
    """Those whose names begin so, or all, that are compiled from our CUDA sources."""
    ours = [kernel for kernel in every_layout() if kernel.requires_cuda and not any(w in kernel.name for w in NOT_OURS)]
    return [kernel for kernel in ours if not beginnings or kernel.name.startswith(tuple(beginnings))]


def runs(kernels: list[InLayout]) -> Iterator[tuple[RandomProblem, object]]:
    """Problems and launches. Kernels take turns, a problem each, so that a short time serves all alike."""
    turn = Counter()
    for seed in SEEDS:
        largest = LARGEST_OF_ONE_ROW if OCCASIONS[seed % len(OCCASIONS)] == "one row" else LARGEST
        for kernel in kernels:
            drawn = draw(kernel, seed, "cuda", largest=largest)
            if not isinstance(drawn, RandomProblem):
                print(f"{kernel.name}: {drawn}")
                continue
            turn[kernel.name] += 1
            for launch in launches(drawn, turn[kernel.name]):
                yield drawn, launch


def launches(drawn: RandomProblem, turn: int) -> list:
    """A third of what tuning may choose, another at each turn, or None for the launch that the kernel chooses itself."""
    tunable = drawn.kernel.tunable
    if tunable is None:
        return [None]
    possible = list(tunable.candidates(drawn.packed, drawn.problem))
    chosen = possible[turn % 3 :: 3] or possible[:1]
    if isinstance(chosen[0], ThreadPerOutputLaunch):  # one in which a warp takes all of K, and so fills its ring again
        chosen.append(replace(chosen[0], strips=4, shares=1, splits=1))
    return chosen


def fault(drawn: RandomProblem, launch: object) -> str | None:
    """Run it; what is wrong with the result, or None."""
    if launch is not None:
        drawn.kernel.tunable.try_out(drawn.packed, drawn.problem, launch)
    y = drawn.run().cpu()
    here = {name: part.cpu() for name, part in drawn.epilogue.items() if name == "residual"}
    bias = None if drawn.bias is None else drawn.bias.cpu()
    on_cpu = replace(drawn, x=drawn.x.cpu(), stored=drawn.stored.to("cpu"), bias=bias, epilogue=drawn.epilogue | here)
    return on_cpu.fault(y)


def main(seconds: float, beginnings: list[str]) -> int:
    """Run all; the exit code."""
    ran, faults, start = Counter(), [], time.monotonic()
    for drawn, launch in runs(cuda_kernels(beginnings)):
        if time.monotonic() > start + seconds:
            break
        found = fault(drawn, launch)
        faults += [f"{found} ({launch})"] * (found is not None)
        ran[drawn.kernel.name] += 1
    print(f"ran {dict(ran)}; {len(faults)} wrong", *faults, sep="\n")
    return 1 if faults or not ran else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0, sys.argv[2:]))
