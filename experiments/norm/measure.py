"""Times LayerNorm of feature-major columns: Triton's kernel beside each division of the Hopper kernel.

python -m experiments.norm.measure --out experiments/norm/h200.csv
python -m experiments.norm.measure --rows --out experiments/norm/rows.csv

With --rows norms of rows instead: the Hopper kernel beside PyTorch's norm and the sum before it, compiled and not.

Every launch is first compared with the norm in float64 (`norm_trial`), and one that is wrong or fails leaves a line with the
reason and no time. Times are those of CUDA graphs, on copies of the operands that take turns so that no cache still holds them.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels.bench.correctness import DTYPES
from sparsefront_kernels.bench.provider import copied
from sparsefront_kernels.bench.timing import copies_for, require_gpu, time_calls
from sparsefront_kernels.norm.layer_norm import NormLaunch, NormProblem, candidates
from sparsefront_kernels.norm.rows import rows_unsupported_reason
from torch import nn
from torch.nn import functional

from experiments.harness.rows import append_line, today
from sparsefront.errors import failure_reason
from sparsefront.inference.fusion.norms import NormTrial
from sparsefront.inference.fusion.placement import FusedNorm, FusedResidualNorm, FusedRowNorm
from sparsefront.provenance import provenance

# features x columns: ViT-L at 256 and 64 images, BERT-large at 96 x 128 tokens, BERT-base at 128 x 128 and 8 x 128, ViT-B at 256
# images, MiniLM at 128 x 128 tokens
SHAPES = "1024x50432,1024x12608,1024x12288,768x16384,768x1024,768x50432,384x16384"
KINDS = {"plain": (False, False), "residual": (True, False), "residual+sums": (True, True)}


def problems(shapes: str, dtypes: str) -> Iterator[NormProblem]:
    """Of all shapes, kinds and types, feature-major."""
    for shape, name, (residual, keep_sums) in product(shapes.split(","), dtypes.split(","), KINDS.values()):
        d, m = map(int, shape.split("x"))
        layout = "feature_major"
        yield NormProblem(d, m, DTYPES[name], residual, keep_sums, layout, layout if residual else "")


def norm_of(problem: NormProblem, device: torch.device) -> FusedNorm:
    """As a network has it: weight, bias and a product's bias in the type of the columns."""
    vectors = [torch.ones(problem.d, device=device, dtype=problem.dtype) for _ in range(3)]
    if not problem.residual:
        return FusedNorm(*vectors[:2], 1e-6)
    return FusedResidualNorm(*vectors[:2], 1e-6, x_bias=vectors[2], keep_sums=problem.keep_sums)


def moved_bytes(problem: NormProblem) -> int:
    """Of columns read and written; vectors are small beside them."""
    return (2 + problem.residual + problem.keep_sums) * problem.d * problem.m * problem.dtype.itemsize


def latency(trial: NormTrial, launch: NormLaunch, l2_bytes: int, samples: int) -> dict[str, Any]:
    """The times of a launch, or why it has none."""
    reason = trial.unsupported_reason(launch)
    try:
        if reason is None and (reason := trial.wrong_reason(launch)) is None:
            candidate: nn.Module = trial.candidate(launch)
            copies = copies_for(moved_bytes(trial.problem), l2_bytes)
            sets = [trial.operands, *(copied(trial.operands) for _ in range(copies - 1))]
            taken = asdict(time_calls([partial(candidate, *operands) for operands in sets], samples=samples))
            return taken | {"gb_per_s": round(moved_bytes(trial.problem) / taken["median_us"] / 1e3), "reason": ""}
    except Exception as raised:  # a kernel may fail in any way; the others are timed all the same
        reason = failure_reason(raised)
    return dict.fromkeys(("median_us", "p20_us", "p80_us", "samples", "gb_per_s"), "") | {"reason": reason}


def cells_of(problem: NormProblem, device: torch.device, **more: Any) -> dict[str, Any]:
    """Columns of a problem, then `more`, then where and when it is measured."""
    facts, dtype = provenance(device), str(problem.dtype).removeprefix("torch.")
    about = {
        "d": problem.d,
        "m": problem.m,
        "dtype": dtype,
        **{name: more.pop(name) for name in ("kind",) if name in more},
    }
    about |= {"residual": problem.residual, "keep_sums": problem.keep_sums, **more, "device": facts.gpu or "cpu"}
    made = {"torch": facts.torch_version, "cuda": facts.cuda or "", "commit": facts.commit or "", "date": today()}
    return about | made


@torch.inference_mode()
def measure(problem: NormProblem, device: torch.device, l2_bytes: int, samples: int) -> Iterator[dict[str, Any]]:
    """A line per launch that holds the features."""
    trial = NormTrial(norm_of(problem, device), problem, device)
    for launch in candidates(problem, 1):
        taken = latency(trial, launch, l2_bytes, samples)
        yield cells_of(problem, device, launch=str(launch), **taken)


ROW_LIMIT = {torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of an element, relative and absolute


class PlainRowNorm(nn.Module):
    """A norm of rows by PyTorch's operations."""

    def __init__(self, norm: FusedRowNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        norm, total = self.norm, x
        if residual is not None:
            total = x + norm.x_bias + residual
        if norm.kind == "rms_norm":
            y = functional.rms_norm(total, total.shape[-1:], norm.weight, norm.eps)
        else:
            y = functional.layer_norm(total, total.shape[-1:], norm.weight, norm.bias, norm.eps)
        return (y, total) if norm.keep_sums else (y,)


def row_norm_of(problem: NormProblem, kind: str, device: torch.device) -> FusedRowNorm:
    """As `norm_of`."""
    vectors = [torch.randn(problem.d, device=device, dtype=problem.dtype) for _ in range(3)]
    bias, x_bias = None if kind == "rms_norm" else vectors[1], vectors[2] if problem.residual else None
    return FusedRowNorm(vectors[0], bias, 1e-6, kind=kind, x_bias=x_bias, keep_sums=problem.keep_sums)


@torch.inference_mode()
def measure_rows(problem: NormProblem, device: torch.device, l2_bytes: int, samples: int) -> Iterator[dict[str, Any]]:
    """A line per kind of norm and way of computing it."""
    shape = (problem.m, problem.d)
    for kind in ("layer_norm", "rms_norm"):
        torch._dynamo.reset()  # past its limit of graphs it would run PyTorch's operations and say nothing
        ours = row_norm_of(problem, kind, device)
        plain = PlainRowNorm(ours)
        copies = copies_for(moved_bytes(problem), l2_bytes)
        sets = [
            [torch.randn(shape, device=device, dtype=problem.dtype) + 1 for _ in range(1 + problem.residual)]
            for _ in range(copies)
        ]
        truth = PlainRowNorm(copy.deepcopy(ours).double())(*(part.double() for part in sets[0]))
        for launch, call in {"cuda_rows": ours, "compiled": torch.compile(plain), "pytorch": plain}.items():
            line = dict.fromkeys(("median_us", "p20_us", "p80_us", "samples", "gb_per_s"), "")
            reason = rows_unsupported_reason(problem.d, problem.dtype, device) if call is ours else None
            limit = ROW_LIMIT[problem.dtype]
            if reason is None:
                outputs = call(*sets[0])
                close = [torch.allclose(y.double(), right, limit, limit) for y, right in zip(outputs, truth)]
                reason = None if all(close) else "differs from the float64 norm"
            if reason is None:
                line = asdict(time_calls([partial(call, *operands) for operands in sets], samples=samples))
                line["gb_per_s"] = round(moved_bytes(problem) / line["median_us"] / 1e3)
            yield cells_of(problem, device, kind=kind, launch=launch, **line, reason=reason or "")


def measure_all(
    found: Iterable[NormProblem],
    out: Path,
    device: torch.device,
    l2_bytes: int,
    samples: int,
    lines_of: Callable[[NormProblem, torch.device, int, int], Iterator[dict[str, Any]]] = measure,
) -> bool:
    """Add all lines to a CSV file, each as soon as it is measured; whether every launch has a time."""
    complete = True
    for problem in found:
        for line in lines_of(problem, device, l2_bytes, samples):
            append_line(out, line)
            complete &= not line["reason"]
            print(problem, line["launch"], line["reason"] or f"{line['median_us']:.1f} us, {line['gb_per_s']} GB/s")
    return complete


def main() -> int:
    """Returns 1 where a launch has no time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="CSV file; lines are added")
    parser.add_argument("--shapes", default=SHAPES, help="features x columns, with commas")
    parser.add_argument("--dtypes", default="fp16", help=f"of {', '.join(DTYPES)}, with commas")
    parser.add_argument("--samples", type=int, default=20, help="graph replays of each launch")
    parser.add_argument("--rows", action="store_true", help="norms of rows instead")
    asked = parser.parse_args()
    require_gpu()
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    chosen, lines_of = problems(asked.shapes, asked.dtypes), measure_rows if asked.rows else measure
    return int(not measure_all(chosen, asked.out, device, l2_bytes, asked.samples, lines_of))


if __name__ == "__main__":
    sys.exit(main())
