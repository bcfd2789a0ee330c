"""Public threads that say "sparse is not faster", run again: a verdict for each, with its interval.

    python -m experiments.complaints.rerun              # on a GPU, about two minutes; verdicts.csv, then README.md
    python -m experiments.complaints.rerun --dry-run    # on any machine: every case is right, at widths that a CPU can do

Each case is run in two ways: as the thread did, through PyTorch alone and launch by launch, and with the kernels here, the
fastest that is not dense, in the fastest execution mode. Both are timed in turn with dense in one process, dense in the same
execution modes. What gives another result than the pruned weights do is not timed.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparsefront as sf
from experiments.complaints.cases import CASES, Case
from experiments.complaints.ways import as_in_the_thread, dense_net, masked_net, weight_bytes
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.measure.correctness import NETWORK_ERROR_LIMIT, output_error
from sparsefront.provenance import provenance
from sparsefront.results.statistics import FASTER, SLOWER, UNCLEAR, speed_verdict

HERE = Path(__file__).resolve().parent
THREAD, OURS = "as in the thread", "kernels here"
WIN, TIE, LOSS, UNSUPPORTED, RIGHT = "win", "tie", "loss", "unsupported", "right"
SCALE = 16  # of widths, without a GPU
TIMED = {"warmup": 5, "samples": 20, "repeats": 5, "variants": [], "search_seconds": 2.0}


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
                report = sf.swap(masked, masks, inputs, kernel="sparse" if timed else "reference")
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
    found: dict[str, Any] = {"relative_error": error, "bytes_sparse": weight_bytes(sparse)}
    if not timed:
        return found | {"verdict": RIGHT}
    settings = sf.Measure(execution_modes=modes, **TIMED)
    compared = sf.benchmark(net, sparse, inputs, settings=settings, fuse=None)
    low, high = compared.interval
    verdict = {FASTER: WIN, SLOWER: LOSS, UNCLEAR: TIE}[speed_verdict(low, high)]
    return found | {
        "verdict": verdict,
        "speedup": compared.speedup,
        "speedup_low": low,
        "speedup_high": high,
        "dense_ms": compared.dense_ms,
        "sparse_ms": compared.sparse_ms,
        "mode_dense": compared.timed.dense.execution.name,
        "mode_sparse": compared.timed.execution.name,
    }


COLUMNS = (
    *("thread", "way", "m", "dtype", "pattern", "sparsity", "verdict", "speedup", "speedup_low", "speedup_high"),
    *("dense_ms", "sparse_ms", "mode_dense", "mode_sparse", "kernels", "bytes_dense", "bytes_sparse", "relative_error"),
    *("because", "gpu", "torch", "commit", "date"),
)


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
        print(
            "no CUDA device here, and a CPU's time never stands for a GPU's: --dry-run checks the cases",
            file=sys.stderr,
        )
        return 1
    device, began, wrong = torch.device("cuda" if on_gpu else "cpu"), time.monotonic(), 0
    cases = [case for case in CASES if not arguments.only or any(part in case.thread for part in arguments.only)]
    facts = provenance(device)
    here = {"gpu": facts.gpu or "", "torch": facts.torch_version, "commit": facts.commit or ""}
    lines = []
    for case in cases:
        if time.monotonic() - began > 60 * arguments.minutes:
            print(f"out of time: {case.thread} and what follows is left out")
            break
        for line in verdicts(case if on_gpu else case.scaled(SCALE), device, timed=not arguments.dry_run):
            told = [f"{name} {text(line[name])}" for name in COLUMNS[7:12] if name in line]
            print(
                f"{line['thread']}, {line['way']}: {line['verdict']} {', '.join(told)}{line.get('because', '')}",
                flush=True,
            )
            wrong += arguments.dry_run and line["way"] == OURS and line["verdict"] != RIGHT
            lines.append(line | here | {"date": datetime.now(UTC).date().isoformat()})
        if on_gpu:
            torch.cuda.empty_cache()
    if not arguments.dry_run:
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({name: text(value) for name, value in line.items()} for line in lines)
    print(f"{len(lines)} lines in {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
