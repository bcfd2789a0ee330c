"""Would tiles pay in fp8? The least that they cost: a copy of each tile's kept inputs, then dense e4m3 products of their size.

    python -m experiments.low_precision.tiles --out experiments/low_precision/tiles.csv

fp8 tensor cores read both operands along K, so the inputs of a tile must lie side by side. The copy is a Triton kernel that reads
X [M, K] in rows and writes a chunk [M, kept inputs] for each tile of 128 outputs. The product has the multiplications of all
tiles but one X, which cuBLASLt runs faster than products of a chunk each. Beside them: dense e4m3 of the whole layer.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from sparsefront_kernels.bench.low_precision import low_precision_products
from sparsefront_kernels.bench.timing import require_gpu, time_calls
from torch import Tensor

from experiments.harness.rows import Row, measure_missing, where_and_when

SIZES = ((4096, 4096, 4096), (12288, 1024, 4096), (12288, 4096, 1024))
TILE, SPARSITIES = 128, (0.5, 0.75, 0.9)
ROWS, COLUMNS = 64, 128  # of one program of the copy


@triton.jit
def _copy(x, kept, out, rows, inputs, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tile = tl.program_id(2)
    source = tl.load(kept + tile * count + column, mask=column < count, other=0)
    there = (row < rows)[:, None] & (column < count)[None, :]
    values = tl.load(x + row[:, None] * inputs + source[None, :], mask=there)
    tl.store(out + (tile * rows + row[:, None]) * count + column[None, :], values, mask=there)


def gathered(x: Tensor, kept: Tensor) -> Tensor:
    """X [M, K] (uint8) and the kept inputs [tiles, count] of each tile -> [tiles, M, count]."""
    (m, k), (tiles, count) = x.shape, kept.shape
    out = x.new_empty(tiles, m, count)
    _copy[triton.cdiv(m, ROWS), triton.cdiv(count, COLUMNS), tiles](x, kept, out, m, k, count, ROWS, COLUMNS)
    return out


def cost(m: int, k: int, n: int, sparsity: float, device: str = "cuda") -> Row:
    """Microseconds of the dense product, of the copy and of the product of the kept inputs, and the speedup.

    Raises:
        RuntimeError: the copy is wrong.
    """
    x = torch.randint(256, (m, k), dtype=torch.uint8, device=device)
    count = round(k * (1 - sparsity) / 16) * 16
    kept_inputs = torch.stack([torch.randperm(k, device=device)[:count].sort().values for _ in range(n // TILE)])
    if not torch.equal(gathered(x, kept_inputs)[-1], x[:, kept_inputs[-1]]):
        raise RuntimeError("the copy is wrong")
    chunk, weight = (torch.randn(rows, count, device=device).to(torch.float8_e4m3fn) for rows in (m, n))
    one = torch.ones((), device=device)
    product = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
    calls = (partial(gathered, x, kept_inputs), partial(product, chunk, weight.t(), one, one))
    copy, multiply = (time_calls([call], samples=20).median_us for call in calls)
    peers = low_precision_products(m, k, n, names=["dense_fp8", "dense_fp8_tensorwise"])
    dense = min(peer.latency(samples=20).median_us for peer in peers)
    times = {"dense_fp8_us": f"{dense:.2f}", "copy_us": f"{copy:.2f}", "product_us": f"{multiply:.2f}"}
    return times | {"speedup": f"{dense / (copy + multiply):.3f}"} | where_and_when()


def main() -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file; lines are added")
    asked = parser.parse_args()
    require_gpu()
    cells = [{"m": m, "k": k, "n": n, "sparsity": sparsity} for m, k, n in SIZES for sparsity in SPARSITIES]
    measure_missing(asked.out, cells, cost)
    return 0


if __name__ == "__main__":
    sys.exit(main())
