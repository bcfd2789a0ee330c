"""Every convolution of a ResNet50 with its sparse kernels, beside cuDNN in its better memory layout.

    PYTHONPATH=src:kernels python -m experiments.convolutions.study --batches 128 32 1 --minutes 5

Needs torch, torchvision and a CUDA GPU, no network. Each distinct convolution but the first, which stays dense, is pruned by the
pattern's own code on weights with uneven rows and columns. All kernels that can hold the mask are compared with the fp64
convolution and timed; layout changes and copies that a kernel needs are part of its time. A line is written as soon as it is
measured and never measured again. `summary.py` makes the tables of the page.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from sparsefront_kernels import Problem
from torch import nn

from experiments.harness import runs
from experiments.harness.rows import measure_missing, where_and_when
from sparsefront.export.packed_layers import store
from sparsefront.inference.autotune import autotune_layer, find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.problems import LayerInput
from sparsefront.pruning.operator_masks import UnevenWeights, pattern_masks

HERE = Path(__file__).resolve().parent
IMAGE_SIZE = 224
COLUMNS = (
    "in_channels,out_channels,filter,stride,side,times,batch,dtype,pattern,granularity,sparsity,density,kernel,latency_us,"
    "dense_us,speedup,relative_error,candidates_us,unsupported,notes,gpu,torch,commit,date"
).split(",")


@dataclass(frozen=True)
class Shape:
    """A convolution of the network; `side`: pixels of a side of its images."""

    in_channels: int
    out_channels: int
    filter: int
    stride: int
    side: int

    @property
    def layer(self) -> nn.Conv2d:
        return nn.Conv2d(
            self.in_channels, self.out_channels, self.filter, self.stride, padding=self.filter // 2, bias=False
        )


def resnet50_shapes() -> Counter[Shape]:
    """Distinct convolutions of torchvision's ResNet50 but the first -> how often each occurs."""
    from torchvision.models import resnet50

    with torch.device("meta"):
        net = resnet50()
    uses: Counter[Shape] = Counter()

    def note(module: nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        side = inputs[0].shape[-1]
        uses[Shape(module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0], side)] += 1

    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d) and name != "conv1":
            module.register_forward_hook(note)
    net(torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE, device="meta"))
    return uses


def measure(
    *,
    times: int,
    batch: int,
    dtype: str,
    pattern: str,
    granularity: int,
    sparsity: float,
    device: str = "cuda",
    **of_shape: int,
) -> dict[str, str]:
    """One line: the fastest sparse kernel beside the dense convolution."""
    shape, device = Shape(**of_shape), torch.device(device)
    layer = shape.layer.to(device)
    n, k = as_matrix(layer.weight).shape
    masks = pattern_masks(granularity, pattern=pattern).of
    weight = UnevenWeights().weight(n, k, device)
    mask = masks.layer_mask(weight.abs(), torch.ones_like(weight, dtype=torch.bool), sparsity)
    with torch.no_grad():
        layer.weight.copy_(like_weight(weight * mask, layer.weight))
    layer = layer.to(getattr(torch, {"fp16": "float16", "bf16": "bfloat16"}[dtype])).eval()
    stored = store(as_matrix(layer.weight.detach()), mask, masks.storage((n, k), sparsity))
    out = (shape.side - 1) // shape.stride + 1
    problem = Problem(batch * out * out, k, n, layer.weight.dtype, device)
    wants = partial(KernelChoice("sparse").wants, canonical=stored.family, device=device)
    received = LayerInput(problem, (batch, shape.in_channels, shape.side, shape.side))
    tuned = autotune_layer(layer, find_candidates(stored, mask, problem, wants), received)
    kernel = tuned.fastest(dense_allowed=False)
    dense_us = tuned.latencies_us[tuned.dense]
    ours = (
        {}
        if kernel is None
        else {
            "kernel": kernel,
            "latency_us": f"{tuned.latencies_us[kernel]:.2f}",
            "speedup": f"{dense_us / tuned.latencies_us[kernel]:.4f}",
            "relative_error": f"{tuned.errors[kernel]:.2e}",
        }
    )
    return (
        dict.fromkeys(COLUMNS, "")
        | ours
        | {
            **{name: str(value) for name, value in vars(shape).items()},
            "times": str(times),
            "batch": str(batch),
            "dtype": dtype,
            "pattern": pattern,
            "granularity": str(granularity),
            "sparsity": f"{sparsity:g}",
            "density": f"{mask.float().mean().item():.4f}",
            "dense_us": f"{dense_us:.2f}",
            "candidates_us": " ".join(f"{name}={us:.2f}" for name, us in tuned.latencies_us.items()),
            "unsupported": "; ".join(f"{name}: {why}" for name, why in tuned.unsupported.items()),
            "notes": "; ".join(f"{name}: {note}" for name, note in tuned.notes.items()),
            **where_and_when(device),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "h200.csv")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 32, 1])
    parser.add_argument("--patterns", nargs="+", default=["block_wise:64"], help="pattern:granularity")
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.75, 0.9])
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--filters", type=int, nargs="+", default=[1, 3])
    runs.add_options(parser)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("convolutions are timed on a CUDA GPU, and there is none")
    ends_at = runs.ends_at(asked.minutes)
    patterns = [text.split(":") for text in asked.patterns]
    cells = [
        {**vars(shape), "times": times, "batch": batch, "dtype": asked.dtype, "pattern": pattern}
        | {"granularity": int(granularity), "sparsity": sparsity}
        for batch, (pattern, granularity), sparsity in product(asked.batches, patterns, asked.sparsities)
        for shape, times in resnet50_shapes().items()
        if shape.filter in asked.filters
    ]
    measure_missing(asked.out, cells, measure, ends_at=ends_at)


if __name__ == "__main__":
    main()
