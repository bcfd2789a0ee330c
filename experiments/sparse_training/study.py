"""Measure training with skipped pruned blocks: whole steps of networks, and the three products of a layer.

    python -m experiments.sparse_training.study products --out results/sparse_training/products.csv
    python -m experiments.sparse_training.study steps --out results/sparse_training/steps.csv [--only bert_base,0.75] [--profile]
    python -m experiments.sparse_training.study two_four --out results/sparse_training/two_four.csv

Networks have random weights, uneven like trained ones, pruned by magnitude. A step is forward, backward and a fused AdamW step in
mixed precision; the baseline is the network before pruning. Both are compiled, per block or whole, and timed in turn in one
process: eager, with both passes as CUDA graphs (`trainer.cuda_graphs`), and as one CUDA graph; the fastest counts. two_four
times cuSPARSELt products of weights that are 2:4 along both inputs and outputs: Y and dX are sparse, dW is dense.
"""

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sparsefront_kernels.bench.timing import time_calls
from sparsefront_kernels.blocked.training import TrainableBlockedLinear
from sparsefront_kernels.gathered.training import TrainableTilesLinear
from sparsefront_kernels.semi_structured.cusparselt import searched
from torch import Tensor, nn

from experiments.end_to_end.networks import Network, build, inputs_of, prune
from experiments.end_to_end.points import Point, Setting
from experiments.harness.measure import kernel_times_us
from experiments.harness.rows import append_line, measure_missing, text, where_and_when
from sparsefront.measure.correctness import floating_tensors
from sparsefront.models.base import block_names
from sparsefront.patterns.n_m import NM
from sparsefront.training.graphs import GraphedForward

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BLOCK = 64
GRANULARITIES = {"block_wise": BLOCK, "tile_wise": 128}
SIZES = (("bert_base", 128, 128), ("bert_large", 32, 384), ("vit_l_16", 64, None))
SPARSITIES = (0.75, 0.9)
WARM_UP, STEPS, TURNS = 3, 8, 2
ROWS = 12_288
SHAPES = ((1024, 1024), (1024, 4096), (4096, 1024), (768, 768), (768, 3072), (3072, 768))  # K, N
TWO_FOUR_SHAPES = (  # M, K, N: two from the PyTorch talk, then ours
    (13_008, 1024, 4096),
    (13_008, 4096, 1024),
    (12_288, 1024, 1024),
    (12_288, 1024, 4096),
    (12_288, 4096, 1024),
    (49_152, 1024, 4096),
)
COPIES = 3  # of X and dY, used in turn so that L2 holds none of them

# Part of a step -> substrings of its kernels' names; the first match counts.
PARTS = {
    "packing": ("pack_panels",),
    "weight gradient": ("weight_gradient", "blocked_gradient", "add_splits"),
    "sparse products": ("blocked_sm90", "_blocked_triton"),
    "dense products": ("nvjet", "gemm", "cutlass", "xmma"),
    "attention": ("flash", "fmha", "attention", "sdpa", "cudnn"),
    "optimizer": ("multi_tensor", "FusedAdam"),
}
REST = "rest"


def products_of(m: int, k: int, n: int, block: int, sparsity: float, dtype: str) -> dict[str, float]:
    """Microseconds of Y, dX and dW, dense and block-sparse, including packing, and the speedup of all three."""
    torch.manual_seed(0)
    linear = nn.Linear(k, n, device="cuda")
    ranks = torch.rand(n // block, k // block, device="cuda").flatten().argsort().argsort().view(n // block, k // block)
    mask = (ranks < round(ranks.numel() * (1 - sparsity))).repeat_interleave(block, 0).repeat_interleave(block, 1)
    layer = TrainableBlockedLinear.from_masked(linear, mask, (block, block))
    xs, dys = ([torch.randn(m, side, device="cuda", dtype=DTYPES[dtype]) for _ in range(COPIES)] for side in (k, n))
    weight, ops = linear.weight.detach().to(DTYPES[dtype]), torch.ops.sparsefront
    values, handle = layer.weight.detach(), layer._handle
    _, transposed = ops.blocked_training(xs[0], values, None, handle, n)
    calls: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "dense_y_us": lambda x, dy: F.linear(x, weight),
        "dense_dx_us": lambda x, dy: dy @ weight,
        "dense_dw_us": lambda x, dy: dy.t() @ x,
        "sparse_y_us": lambda x, dy: ops.blocked_training(x, values, None, handle, n),
        "sparse_dx_us": lambda x, dy: ops.blocked_training_dx(dy, transposed, handle, k),
        "sparse_dw_us": lambda x, dy: ops.blocked_training_dw(dy, x, values, handle, False),
    }
    with torch.no_grad():
        times_us = {
            name: time_calls(
                [lambda x=x, dy=dy, call=call: call(x, dy) for x, dy in zip(xs, dys, strict=True)]
            ).median_us
            for name, call in calls.items()
        }
    dense, sparse = (sum(us for name, us in times_us.items() if name.startswith(kind)) for kind in ("dense", "sparse"))
    return times_us | {"speedup": dense / sparse} | where_and_when()


def two_four_of(m: int, k: int, n: int, dtype: str) -> dict[str, float]:
    """Microseconds of making the mask, of packing W and its transpose, and of the products; errors vs. float64."""
    torch.manual_seed(0)
    transposable = NM(transposable=True)
    weight = torch.randn(n, k, device="cuda") / k**0.5
    mask = transposable.mask(weight.abs(), 0.5)
    xs, dys = ([torch.randn(m, side, device="cuda", dtype=DTYPES[dtype]) for _ in range(COPIES)] for side in (k, n))

    def packed() -> tuple[Tensor, Tensor]:
        sparse = (weight * mask).to(DTYPES[dtype])
        return torch._cslt_compress(sparse), torch._cslt_compress(sparse.t().contiguous())

    sparse = (weight * mask).to(DTYPES[dtype])
    of_w, of_transposed = packed()
    y_by, dx_by = searched(of_w, xs[0].t()), searched(of_transposed, dys[0].t())

    def y(x: Tensor, dy: Tensor) -> Tensor:
        return torch._cslt_sparse_mm(
            of_w, x.t(), alg_id=y_by.alg_id, split_k=y_by.split_k, split_k_mode=y_by.split_k_mode
        )

    def dx(x: Tensor, dy: Tensor) -> Tensor:
        return torch._cslt_sparse_mm(
            of_transposed, dy.t(), alg_id=dx_by.alg_id, split_k=dx_by.split_k, split_k_mode=dx_by.split_k_mode
        )

    by_output = y(xs[0], dys[0])
    errors = {
        f"{name}_error": float((output.t().double() - expected).norm() / expected.norm())
        for name, output, expected in (
            ("y", by_output, xs[0].double() @ sparse.double().t()),
            ("dx", dx(xs[0], dys[0]), dys[0].double() @ sparse.double()),
        )
    }
    calls: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "dense_y_us": lambda x, dy: F.linear(x, sparse),
        "dense_dx_us": lambda x, dy: dy @ sparse,
        "dw_us": lambda x, dy: dy.t() @ x,
        "mask_us": lambda x, dy: transposable.mask(weight.abs(), 0.5),
        "round_us": lambda x, dy: weight.to(DTYPES[dtype]),
        "pack_us": lambda x, dy: packed(),
        "y_us": y,
        "dx_us": dx,
        "y_to_rows_us": lambda x, dy: by_output.t().contiguous(),
    }
    pairs = list(zip(xs, dys, strict=True))
    with torch.no_grad():
        times_us = {
            name: time_calls([lambda x=x, dy=dy, call=call: call(x, dy) for x, dy in pairs]).median_us
            for name, call in calls.items()
        }
    dense = times_us["dense_y_us"] + times_us["dense_dx_us"] + times_us["dw_us"] + times_us["round_us"]
    sparse_us = times_us["y_us"] + times_us["dx_us"] + times_us["dw_us"] + times_us["pack_us"]
    return (
        times_us
        | {"speedup": dense / sparse_us, "kept_share": float(weight.abs()[mask].sum() / weight.abs().sum())}
        | errors
        | where_and_when()
    )


@dataclass
class Training:
    """A network in training; `step` does one training step.

    Args:
        trained: the pruned layers, or in the baseline their dense versions.
    """

    net: nn.Module
    trained: list[str]
    optimizer: torch.optim.Optimizer
    inputs: dict[str, Tensor]
    target: Tensor
    dtype: torch.dtype

    def step(self) -> None:
        with torch.autocast("cuda", self.dtype):
            logits = floating_tensors(self.net(**self.inputs))[0]
        F.cross_entropy(logits.float(), self.target).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def pruned_bytes(self) -> int:
        """Bytes of the pruned layers' weights and optimizer state."""
        weights = [self.net.get_submodule(name).weight for name in self.trained]
        states = [tensor for weight in weights for tensor in self.optimizer.state[weight].values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*weights, *states))


def training_of(
    network: Network, layers: list[str], inputs: dict[str, Tensor], dtype: torch.dtype, compiled: str
) -> Training:
    """Args:
    compiled: blocks, network or none.
    """
    net = network.net.train().requires_grad_(True)
    if compiled == "network":
        net.forward = torch.compile(net.forward)
    elif compiled == "blocks":
        for name in block_names(net, network.prunable):
            block = net.get_submodule(name)
            block.forward = torch.compile(block.forward)
    first = next(iter(inputs.values()))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True, capturable=first.is_cuda)
    target = torch.zeros(len(first), dtype=torch.int64, device=first.device)
    return Training(net, layers, optimizer, inputs, target, dtype)


def measure_steps(out: Path, dtype_name: str, compiled: str, only: list[str], profile: bool, pattern: str) -> None:
    """A line for each network and sparsity."""
    for (model, batch, length), sparsity in product(SIZES, SPARSITIES):
        if only and f"{model},{sparsity:g}" not in only:
            continue
        point = Point(model, batch, length, dtype_name, Setting(pattern, GRANULARITIES[pattern], sparsity))
        row = steps_of(point, compiled, profile)
        append_line(out, {name: text(cell) for name, cell in row.items()})
        print({name: text(cell) for name, cell in row.items()}, flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def steps_of(point: Point, compiled: str, profile: bool) -> dict[str, Any]:
    """Milliseconds of a step, dense and sparse, and with `profile` of its parts."""
    dtype, device = DTYPES[point.dtype], torch.device("cuda")
    dense = build(point.model, device)
    sparse = Network(copy.deepcopy(dense.net), dense.prunable, dense.body)
    masks = prune(sparse, point)
    for name, mask in masks.items():
        sparse.net.set_submodule(name, trainable(sparse.net.get_submodule(name), mask, point.setting.pattern))
    inputs = inputs_of(dense.net, point.batch, point.sequence_length, device=device, dtype=torch.float32)
    trainings = {
        kind: training_of(network, list(masks), inputs, dtype, compiled)
        for kind, network in (("dense", dense), ("sparse", sparse))
    }
    row = {**point.columns, "compiled": compiled}
    row = {name: cell for name, cell in row.items() if name not in ("group_m", "kernel_mode", "pattern_settings")}
    taken = {mode: timed(trainings, mode) for mode in ("launched", "recorded", "graph")}
    for mode, samples in taken.items():
        row |= {f"{kind}_{mode}_ms": statistics.median(samples[kind]) for kind in trainings}
    best = {kind: min(row[f"{kind}_{mode}_ms"] for mode in taken) for kind in trainings}
    row |= {"speedup": best["dense"] / best["sparse"]}
    row |= {"memory_of_pruned": trainings["sparse"].pruned_bytes / trainings["dense"].pruned_bytes}
    if profile:
        for kind, training in trainings.items():
            row |= {f"{kind}_{part}_ms".replace(" ", "_"): ms for part, ms in parts_of(training.step)}
    return row | where_and_when()


def trainable(linear: nn.Linear, mask: Tensor, pattern: str) -> nn.Module:
    """A sparse layer that trains the kept weights."""
    if pattern == "tile_wise":
        return TrainableTilesLinear.from_masked(linear, mask)
    return TrainableBlockedLinear.from_masked(linear, mask, (BLOCK, BLOCK))


def timed(trainings: dict[str, Training], mode: str) -> dict[str, list[float]]:
    """Milliseconds of steps, timed in turn.

    Args:
        mode: launched (eager), recorded (forward and backward are one CUDA graph each) or graph (the whole step is one).
    """
    taken: dict[str, list[float]] = {kind: [] for kind in trainings}
    for _, (kind, training) in product(range(TURNS), trainings.items()):
        graph = recorded(training) if mode == "graph" else None
        step = training.step if graph is None else graph.replay
        with passes_recorded(training.net) if mode == "recorded" else nullcontext():
            for index in range(WARM_UP + STEPS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                step()
                end.record()
                torch.cuda.synchronize()
                if index >= WARM_UP:
                    taken[kind].append(begin.elapsed_time(end))
        del graph, step
        torch.cuda.empty_cache()
    return taken


@contextmanager
def passes_recorded(net: nn.Module) -> Iterator[None]:
    """Context in which forward and backward passes are CUDA graphs."""
    before = vars(net).get("forward")
    net.forward = GraphedForward(net, net.forward)
    try:
        yield
    finally:
        del net.forward
        if before is not None:
            net.forward = before


def recorded(training: Training) -> torch.cuda.CUDAGraph:
    """Record a step as a CUDA graph, one at a time, since each holds the memory of a whole step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    return graph


def parts_of(step: Callable[[], None]) -> Iterator[tuple[str, float]]:
    """Profile a step: part -> milliseconds of its kernels."""
    milliseconds = dict.fromkeys([*PARTS, REST], 0.0)
    for name, us in kernel_times_us(step).items():
        milliseconds[part_of(name)] += us / 1000
    yield from milliseconds.items()


def part_of(kernel: str) -> str:
    """The part in `PARTS` that a kernel belongs to, by name."""
    matches = (part for part, words in PARTS.items() if any(word.lower() in kernel.lower() for word in words))
    return next(matches, REST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("products", "steps", "two_four"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--sparsities", type=float, nargs="+", default=list(SPARSITIES))
    parser.add_argument("--only", nargs="+", default=[], help="such as bert_base,0.75")
    parser.add_argument("--compiled", choices=("blocks", "network", "none"), default="blocks")
    parser.add_argument("--pattern", choices=list(GRANULARITIES), default="block_wise", help="of steps")
    parser.add_argument("--profile", action="store_true", help="how a step is divided between kernels")
    arguments = parser.parse_args()
    if arguments.what == "products":
        shapes = product(SHAPES, arguments.sparsities)
        cells = [{"m": ROWS, "k": k, "n": n, "block": BLOCK, "sparsity": level} for (k, n), level in shapes]
        measure_missing(arguments.out, [one | {"dtype": arguments.dtype} for one in cells], products_of)
    elif arguments.what == "two_four":
        cells = [{"m": m, "k": k, "n": n, "dtype": arguments.dtype} for m, k, n in TWO_FOUR_SHAPES]
        measure_missing(arguments.out, cells, two_four_of)
    else:
        measure_steps(
            arguments.out, arguments.dtype, arguments.compiled, arguments.only, arguments.profile, arguments.pattern
        )


if __name__ == "__main__":
    main()
