"""Public threads that say "sparse is not faster", run again: a verdict for each, with its interval.

    python -m experiments.complaints.rerun              # on a GPU, about two minutes; verdicts.csv, then README.md
    python -m experiments.complaints.rerun --dry-run    # on any machine: every case is right, at widths that a CPU can do

Each case is run in two ways: as the thread did, through PyTorch alone and launch by launch, and with the kernels here, the
fastest that is not dense, in the fastest execution mode. Both are timed in turn with dense in one process, dense in the same
execution modes. What gives another result than the pruned weights do is not timed.
"""

import argparse
import copy
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

import sparsefront as sf
from experiments.complaints.cases import CASES, Case
from experiments.harness import runs
from experiments.harness.rows import where_and_when, write
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.measure.correctness import NETWORK_ERROR_LIMIT, output_error
from sparsefront.measure.memory import resident_bytes
from sparsefront.results.statistics import FASTER, SLOWER, UNCLEAR, speed_verdict

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
THREAD, OURS = "as in the thread", "kernels here"
WIN, TIE, LOSS, UNSUPPORTED, RIGHT = "win", "tie", "loss", "unsupported", "right"
COLUMNS = (
    *("thread", "way", "m", "dtype", "pattern", "sparsity", "verdict", "speedup", "speedup_low", "speedup_high"),
    *("dense_ms", "sparse_ms", "mode_dense", "mode_sparse", "kernels", "bytes_dense", "bytes_sparse", "relative_error"),
    *("because", "gpu", "torch", "commit", "date"),
)
SCALE = 16  # of widths, without a GPU
TIMED = {"warmup": 5, "samples": 20, "repeats": 5, "variants": [], "autotune_seconds": 2.0}


class Product(nn.Module):
    """y = x · weightᵀ + bias with a weight in one of PyTorch's sparse layouts."""

    def __init__(self, layer: nn.Linear, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.layout == torch.sparse_csr:
            return (self.weight @ x.t()).t() + self.bias
        return linear(x, self.weight, self.bias)


def dense_net(case: Case, device: torch.device) -> nn.Sequential:
    """Random weights, the same for a case at every call."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(k, n) for k, n in case.layers)).to(case.dtype).eval().requires_grad_(False)


def masked_net(case: Case, net: nn.Sequential, inputs: tuple[Tensor]) -> tuple[nn.Sequential, sf.Masks]:
    """A copy, pruned, with its masks."""
    pruned = copy.deepcopy(net)
    masks = sf.prune(pruned, case.pattern, case.sparsity, layers=["*"], example_inputs=inputs, tell=lambda line: None)
    return pruned, masks


def as_in_the_thread(case: Case, masked: nn.Sequential) -> nn.Sequential:
    """The pruned network as PyTorch alone runs it, with the weights that it is given.

    Raises:
        RuntimeError, ValueError: PyTorch cannot, on this device or in this shape.
    """
    convert: dict[str, Callable[[Tensor], Tensor]] = {
        "semi_structured": to_sparse_semi_structured,
        "csr": Tensor.to_sparse_csr,
        "zeros": lambda weight: weight,
    }
    return nn.Sequential(*(Product(layer, convert[case.way](layer.weight)) for layer in masked)).eval()


def weight_bytes(net: nn.Module) -> int:
    """Of all that a network of a case holds on its device, each storage once; PyTorch's sparse layouts by their parts."""
    if not any(isinstance(module, Product) for module in net.modules()):
        return resident_bytes(net, next(net.parameters()).device)
    parts = [part for layer in net for part in (layer.bias, *_parts(layer.weight))]
    return sum({part.untyped_storage()._cdata: part.untyped_storage().nbytes() for part in parts}.values())


def _parts(weight: Tensor) -> list[Tensor]:
    if weight.layout == torch.sparse_csr:
        return [weight.values(), weight.col_indices(), weight.crow_indices()]
    if isinstance(weight, SparseSemiStructuredTensor):
        names, _ = weight.__tensor_flatten__()
        return [getattr(weight, name) for name in names]
    return [weight]


def verdicts(case: Case, device: torch.device, *, timed: bool) -> Iterator[dict[str, Any]]:
    """A line for each of the two ways.

    Args:
        timed: False: only whether each result is right.
    """
    net = dense_net(case, device)
    inputs = (torch.randn(case.m, case.layers[0][0], device=device, dtype=case.dtype),)
    masked, masks = masked_net(case, net, inputs)
    with torch.inference_mode():
        expected = masked(*inputs)
    for way in (THREAD, OURS):
        line = {"thread": case.thread, "way": way, "m": case.m, "pattern": case.pattern.name, "sparsity": case.sparsity}
        line |= {"dtype": str(case.dtype).removeprefix("torch."), "bytes_dense": weight_bytes(net)}
        try:
            if way == THREAD:
                sparse, kernels, modes = as_in_the_thread(case, masked), case.way, ["eager"]
            else:
                kernel = "sparse" if timed else "reference"
                report = sf.swap(masked, masks, inputs, kernel=kernel, seconds=math.inf, tell=log.info)
                sparse, kernels = masked, "+".join(report.kernels)
                modes = ["eager", "cuda_graph"]
                if report.sparse_layer_share == 0:
                    raise RuntimeError("; ".join(sorted(set(report.dense_layers.values()))))
            line |= {"kernels": kernels} | _measured(net, sparse, inputs, expected, modes, timed=timed)
        except (RuntimeError, ValueError, NotImplementedError, InvalidSetting) as error:
            line |= {"verdict": UNSUPPORTED, "because": failure_reason(error)}
        yield line


def _measured(
    net: nn.Module, sparse: nn.Module, inputs: tuple[Tensor], expected: Tensor, modes: list[str], *, timed: bool
) -> dict[str, Any]:
    with torch.inference_mode():
        error = output_error(sparse(*inputs), expected)
    limit = NETWORK_ERROR_LIMIT[expected.dtype]
    if not error <= limit:
        raise RuntimeError(f"wrong: relative error {error:.1e}, at most {limit:.0e} is rounding; not timed")
    cells: dict[str, Any] = {"relative_error": error, "bytes_sparse": weight_bytes(sparse)}
    if not timed:
        return cells | {"verdict": RIGHT}
    settings = sf.Measure(execution_modes=modes, **TIMED)
    compared = sf.benchmark(net, sparse, inputs, settings=settings, fuse=None, seconds=math.inf, tell=log.info)
    low, high = compared.interval
    verdict = {FASTER: WIN, SLOWER: LOSS, UNCLEAR: TIE}[speed_verdict(low, high)]
    return cells | {
        "verdict": verdict,
        "speedup": compared.speedup,
        "speedup_low": low,
        "speedup_high": high,
        "dense_ms": compared.dense_ms,
        "sparse_ms": compared.sparse_ms,
        "mode_dense": compared.timed.dense.execution.name,
        "mode_sparse": compared.timed.execution.name,
    }


def text(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="time nothing: only whether every case is right")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="threads whose name holds one of these")
    parser.add_argument("--minutes", type=float, default=10.0, help="no case is begun after so many")
    parser.add_argument("--out", type=Path, default=HERE / "verdicts.csv")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not arguments.dry_run:
        said = "no CUDA device here, and a CPU's time never stands for a GPU's: --dry-run checks the cases"
        print(said, file=sys.stderr)
        return 1
    device, began, wrong = torch.device("cuda" if on_gpu else "cpu"), time.monotonic(), 0
    cases = [case for case in CASES if not arguments.only or any(part in case.thread for part in arguments.only)]
    here, lines, ends_at = where_and_when(device), [], runs.ends_at(arguments.minutes)
    for case in cases:
        if runs.over(ends_at):
            print(f"out of time: {case.thread} and what follows is left out")
            break
        for line in verdicts(case if on_gpu else case.scaled(SCALE), device, timed=not arguments.dry_run):
            values = [f"{name} {text(line[name])}" for name in COLUMNS[7:12] if name in line]
            print(
                f"{line['thread']}, {line['way']}: {line['verdict']} {', '.join(values)}{line.get('because', '')}",
                flush=True,
            )
            wrong += arguments.dry_run and line["way"] == OURS and line["verdict"] != RIGHT
            lines.append(line | here)
        if on_gpu:
            torch.cuda.empty_cache()
    if not arguments.dry_run:
        write(arguments.out, COLUMNS, ({name: text(value) for name, value in line.items()} for line in lines))
    print(f"{len(lines)} lines in {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
