"""Products with e4m3 blocks beside dense e4m3 and beside the same blocks in fp16.

    python -m experiments.low_precision.operators --out experiments/low_precision/operators.csv [--m 4096] [--minutes 8]

Masks are those of block_wise on weights with uneven rows and columns, of one layer. X is quantized before, Y is bfloat16
(float16 of float16 blocks). Peers are dense e4m3 (cuBLASLt as `torch._scaled_mm` calls it, with a scale for each row and output
or one for each matrix, both with fast accumulation), dense int8, and 2:4 in e4m3: cuSPARSELt's and, where torchao is installed,
its CUTLASS kernel (a scale for each row and output). --peers times only these. Every product is first compared with the
float64 product of its own operands; times are those of CUDA graphs on copies of the operands that take turns. A line is written
as soon as it is measured and never measured again; the last lines printed are the page's table.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels.bench.correctness import TOLERANCE, reference_product
from sparsefront_kernels.bench.low_precision import low_precision_products
from sparsefront_kernels.bench.problems import INPUTS_AND_OUTPUTS
from sparsefront_kernels.bench.provider import copied
from sparsefront_kernels.bench.timing import Latency, copies_for, require_gpu, time_calls
from sparsefront_kernels.blocked import fp8_sm90, sm90, sm90_packing
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.fp8_reference import dequantize_rows
from sparsefront_kernels.kernel_entry import UnsupportedProblem
from sparsefront_kernels.quantized.quantize import quantize
from sparsefront_kernels.semi_structured import torchao
from torch import Tensor

from experiments.harness import page, runs
from experiments.harness.rows import measure_missing, read_lines, where_and_when
from sparsefront.pruning.operator_masks import pattern_masks

BLOCKS, SPARSITIES = ("128x128", "64x128"), (0.5, 0.75, 0.9)
ROWWISE, TENSORWISE = "dense_fp8_rowwise", "dense_fp8_tensorwise"
PEERS = {
    ROWWISE: "dense_fp8",
    TENSORWISE: TENSORWISE,
    "dense_int8": "dense_int8",
    "semi_structured_fp8": "semi_structured_fp8_sums",
    "semi_structured_fp8_scaled": "semi_structured_fp8",
    torchao.KERNEL: torchao.KERNEL,
}
"""Kernel -> what `bench.low_precision` calls it: peers without blocks. 2:4 is there without its scales too."""
FP8, FP8_GROUPED, FP16 = "blocked_fp8_sm90", "blocked_fp8_sm90_grouped", "blocked_sm90"
IN_WORDS = {
    FP8: "a scale for each row",
    FP8_GROUPED: "a scale for each row and 128 inputs",
    FP16: "the same blocks in fp16",
}
BARS = {"128x128": ("1.35", "2.1", "3.2"), "64x128": ("1.2", "1.8", "2.8")}
BARS_AT = "4096"  # rows; with fewer, fp8 is asked to be no slower than fp16
LAUNCHES_TIMED = 4  # of the fp16 kernel, best predicted first
MOST_COPIES = 64
FAST_TOLERANCE = 2e-2  # of fast accumulation, which a peer may have
PERCENTILES = {"latency": "median", "p20": "p20", "p80": "p80"}


@dataclass(frozen=True)
class Cell:
    """One product; no block and no sparsity where it is dense."""

    m: int
    k: int
    n: int
    kernel: str
    block: str = ""
    sparsity: float = 0.0


@dataclass(frozen=True)
class Trial:
    """A product that is checked, then timed.

    Args:
        operands: of `call`, which are copied.
        x, weight: float64 [M, K] and [N, K], what its operands stand for.
        moved_bytes: of operands and output.
        tolerance: of the relative error.
        notes: for a reader.
    """

    call: Callable[..., Tensor]
    operands: tuple[Any, ...]
    x: Tensor
    weight: Tensor
    moved_bytes: int
    tolerance: float
    notes: str = ""


def cells(ms: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Iterator[Cell]:
    """Of every size first the peers."""
    for m, (k, n) in product(ms, sizes):
        yield from (Cell(m, k, n, kernel) for kernel in PEERS)
        for block, sparsity in product(BLOCKS, SPARSITIES):
            yield from (Cell(m, k, n, kernel, block, sparsity) for kernel in (FP8, FP8_GROUPED, FP16))


def trials(cell: Cell, device: torch.device) -> list[Trial]:
    """The ways to launch it, of which the fastest counts."""
    outputs, inputs = map(int, cell.block.split("x"))
    masks = pattern_masks(cell.block, pattern="block_wise")  # type: ignore[arg-type]  # "outputs x inputs", too
    drawn = masks.draw(cell.n, cell.k, cell.sparsity, device)
    weight = drawn.weight.half() if cell.kernel == FP16 else drawn.weight
    stored = BlockedFormat.from_dense(weight, drawn.mask, block=(outputs, inputs))
    x = torch.randn(cell.m, cell.k, device=device)
    if cell.kernel == FP16:
        return _in_fp16(cell, stored, x.half())
    packed = fp8_sm90.pack_for_blocked_fp8_sm90(stored)
    q, scales = quantize(x, group=fp8_sm90.GROUP if cell.kernel == FP8_GROUPED else None)
    moved = q.nbytes + packed.panels.nbytes + 2 * cell.m * cell.n
    call = partial(fp8_sm90.blocked_fp8, out_dtype=torch.bfloat16)
    return [
        Trial(
            call,
            (q, scales, packed),
            dequantize_rows(q, scales),
            fp8_sm90.dense_weight(packed),
            moved,
            TOLERANCE["bf16"],
        )
    ]


def _in_fp16(cell: Cell, stored: BlockedFormat, x: Tensor) -> list[Trial]:
    packed = sm90_packing.pack_for_blocked_sm90(stored)
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    launches = sm90.candidates(sm90.BlockedProblem.of(packed, cell.m), sms)[:LAUNCHES_TIMED]

    def call(launch: sm90.BlockedLaunch, x: Tensor, packed: sm90_packing.BlockedSm90Weight) -> Tensor:
        y = x.new_empty(cell.m, cell.n)
        sm90.launch_blocked_sm90(x, y, packed, m=cell.m, launch=launch, x_feature_major=False, y_feature_major=False)
        return y

    moved = x.nbytes + packed.panels.nbytes + 2 * cell.m * cell.n
    weight = stored.to_dense().double()
    return [
        Trial(partial(call, one), (x, packed), x.double(), weight, moved, TOLERANCE["fp16"], str(one))
        for one in launches
    ]


def cusparselt_version() -> str:
    """Of the library that is loaded, which may be newer than the one PyTorch was compiled with."""
    library, parts = ctypes.CDLL("libcusparseLt.so.0"), []
    for part in range(3):  # major, minor, patch
        value = ctypes.c_int()
        library.cusparseLtGetProperty(part, ctypes.byref(value))
        parts.append(str(value.value))
    return ".".join(parts)


def measure(trial: Trial, l2_bytes: int, samples: int) -> tuple[Latency, float]:
    """Its latency and its relative error.

    Raises:
        RuntimeError: the product is wrong.
    """
    y = trial.call(*trial.operands)
    error = reference_product(trial.x, trial.weight).error(y)
    if not error <= trial.tolerance:
        raise RuntimeError(f"relative error {error:.2g}")
    copies = copies_for(trial.moved_bytes, l2_bytes, most=MOST_COPIES)
    sets = [trial.operands, *(copied(trial.operands) for _ in range(copies - 1))]
    return time_calls([partial(trial.call, *operands) for operands in sets], samples=samples), error


def measured_peer(cell: Cell, samples: int) -> tuple[Latency, float, str]:
    """Its latency, relative error and a note.

    Raises:
        RuntimeError: the product is wrong.
    """
    (peer,) = low_precision_products(cell.m, cell.k, cell.n, names=[PEERS[cell.kernel]])
    error = peer.error()
    if not error <= FAST_TOLERANCE:
        raise RuntimeError(f"relative error {error:.2g}")
    if cell.kernel == torchao.KERNEL:
        note = "CUTLASS"
    elif cell.kernel.startswith("semi_structured"):
        note = f"cuSPARSELt {cusparselt_version()}"
    else:
        note = "fast accumulation" if "fp8" in cell.kernel else ""
    return peer.latency(samples=samples), error, note


def measure_cell(samples: int, **cells: Any) -> dict[str, Any]:
    """What is written of a cell: its fastest launch; without a time where a product is wrong or fails."""
    cell, device = Cell(**cells), torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    try:
        if cell.block:
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            done = [(*measure(trial, l2_bytes, samples), trial.notes) for trial in trials(cell, device)]
        else:
            done = [measured_peer(cell, samples)]
        latency, error, notes = min(done, key=lambda one: one[0].median_us)
        line = {f"{name}_us": f"{getattr(latency, f'{part}_us'):.2f}" for name, part in PERCENTILES.items()}
        line |= {"relative_error": f"{error:.2g}", "notes": notes}
    except (RuntimeError, UnsupportedProblem) as failure:
        line = dict.fromkeys(("latency_us", "p20_us", "p80_us", "relative_error"), "")
        line["notes"] = " ".join(str(failure).split())[:200]
    return line | where_and_when(device) | {"cuda": torch.version.cuda}


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Lines of Markdown: geometric means over the sizes of one M, over the faster dense e4m3 product, with the worst size."""
    times = {
        (row["m"], row["k"], row["n"], row["kernel"], row["block"], float(row["sparsity"])): float(row["latency_us"])
        for row in rows
        if row["latency_us"]
    }
    cells = []
    for m, block, kernel in dict.fromkeys((m, block, kernel) for m, _, _, kernel, block, _ in times if block):
        means = []
        for level in SPARSITIES:
            ratios = [
                min(times[m, k, n, dense, "", 0.0] for dense in (ROWWISE, TENSORWISE)) / time
                for (rows_of_x, k, n, *what, sparsity), time in times.items()
                if (rows_of_x, *what, sparsity) == (m, kernel, block, level)
            ]
            means.append(f"{page.geometric_mean(ratios):.2f} ({min(ratios):.2f})" if ratios else "")
        cells.append([m, block, IN_WORDS[kernel], *means])
        if kernel == FP8 and m == BARS_AT:
            cells.append([m, block, "*asked*", *BARS[block]])
    return page.table(("M", "blocks", "operands", *(f"{level:.0%}" for level in SPARSITIES)), cells)


def main() -> int:
    """Returns 1 where a product is wrong or fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file; lines are added")
    parser.add_argument("--m", type=int, nargs="*", default=[4096, 1024, 256], help="rows of X")
    sizes = [f"{k}x{n}" for k, n in INPUTS_AND_OUTPUTS]
    parser.add_argument("--peers", action="store_true", help="only those without blocks")
    parser.add_argument("--sizes", nargs="*", default=sizes, help="inputs x outputs")
    parser.add_argument("--samples", type=int, default=20, help="graph replays of each launch")
    runs.add_options(parser)
    asked = parser.parse_args()
    require_gpu()
    sizes = [tuple(map(int, size.split("x"))) for size in asked.sizes]
    settings = [asdict(cell) for cell in cells(asked.m, sizes) if not (asked.peers and cell.block)]
    measure_missing(asked.out, settings, partial(measure_cell, asked.samples), ends_at=runs.ends_at(asked.minutes))
    lines = read_lines(asked.out)
    print(*table(lines), sep="\n")
    return int(any(not line["latency_us"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
