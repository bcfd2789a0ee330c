"""What holding masks adds to a training step of BERT.

python experiments/mask_speed/step_overhead.py --device cuda --out experiments/mask_speed/steps.csv

The same network takes blocks of steps in turn with and without the hook that zeroes its pruned weights, so that both see
the same clocks and caches. A step is forward, backward and AdamW; nothing else (no data loading, no clipping) hides the
masks. The optimizer is built as in a training of ours, and once more with PyTorch's fused kernel, whose step is shorter.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from records import append_records, origin, show
from torch import nn
from torch.optim import AdamW, Optimizer

from sparsefront.datasets.info import DataInfo
from sparsefront.models.bert import SIZES, Bert
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe

CLASSES = 2
KEPT = 0.25  # of the weights; what is kept where does not change the work


def optimizers(net: nn.Module, fused: bool) -> dict[str, Optimizer]:
    """As `Optimization` builds it, and the same with one fused kernel."""
    ours = Optimization(Recipe(), lr=1e-5, total_steps=1).build(net)["optimizer"]
    built = {"as trained": ours}
    if fused:
        groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in ours.param_groups]
        built["fused"] = AdamW(groups, lr=1e-5, fused=True)
    return built


def random_masks(net: nn.Module, layers: list[str]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(net.get_submodule(name).weight.shape, generator=generator) < KEPT for name in layers}


def step_function(net: nn.Module, optimizer: Optimizer, arguments: argparse.Namespace) -> Callable[[], None]:
    """One training step on a batch that stays on the device."""
    device = torch.device(arguments.device)
    shape = (arguments.batch, arguments.length)
    tokens = torch.randint(0, net.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(device)
    labels = torch.arange(arguments.batch, device=device) % CLASSES

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = net(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()

    return step


def measure(name: str, optimizer: Optimizer, net: nn.Module, masked: MaskedWeights, arguments: Any) -> dict[str, Any]:
    """Medians over the rounds; the overhead is that of each round's two neighbouring blocks."""
    device = torch.device(arguments.device)
    step = step_function(net, optimizer, arguments)
    times_ms: dict[bool, list[float]] = {False: [], True: []}
    _block(step, arguments.steps, device)
    for turn in range(1 + arguments.rounds):
        for held in (False, True) if turn % 2 else (True, False):
            handle = masked.attach(optimizer) if held else None
            taken = _block(step, arguments.steps, device)
            if handle is not None:
                handle.remove()
            if turn > 0:  # the first warms up
                times_ms[held].append(taken)
    overheads = [held / plain - 1 for plain, held in zip(times_ms[False], times_ms[True], strict=True)]
    fifths = quantiles(overheads, n=5) if len(overheads) > 1 else overheads * 4
    return {
        "size": arguments.size,
        "batch": arguments.batch,
        "length": arguments.length,
        "precision": "bf16-mixed" if device.type == "cuda" else "fp32",
        "optimizer": name,
        "layers": len(masked.masks()),
        "step_ms": median(times_ms[False]),
        "step_masked_ms": median(times_ms[True]),
        "overhead": median(overheads),
        "overhead_p20": fifths[0],
        "overhead_p80": fifths[3],
        "apply_ms": _block(masked.apply, arguments.steps, device),
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        **origin(device),
    }


def main() -> int:
    arguments = _parser().parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    model = Bert(size=arguments.size)
    net = model.build(DataInfo("sequence_classification", CLASSES, sequence_length=arguments.length)).to(device).train()
    layers = model.prunable(net)
    masked = MaskedWeights(net, layers)
    masked.set(random_masks(net, layers))
    built = optimizers(net, fused=device.type == "cuda")
    records = [measure(name, optimizer, net, masked, arguments) for name, optimizer in built.items()]
    append_records(arguments.out, records)
    shown = ("optimizer", "step_ms", "step_masked_ms", "overhead", "overhead_p20", "overhead_p80", "apply_ms")
    show(f"steps of BERT-{arguments.size} on {records[0]['device']}", records, shown)
    return 0


def _block(function: Callable[[], None], count: int, device: torch.device) -> float:
    """Milliseconds per call: the queue is drained only at both ends, as in a training."""
    _wait(device)
    start = perf_counter()
    for _ in range(count):
        function()
    _wait(device)
    return (perf_counter() - start) / count * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--size", default="base", choices=list(SIZES), help="of the BERT; tiny only tries the script")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--steps", type=int, default=10, help="in a block")
    parser.add_argument("--rounds", type=int, default=20, help="of two blocks, with and without masks")
    parser.add_argument("--out", type=Path, required=True, help="CSV file; lines are added to it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
