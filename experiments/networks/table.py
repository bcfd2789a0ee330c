"""Make the table of docs/networks.md: how pruning and rewriting work on common networks, at tiny sizes on a CPU.

    python -m experiments.networks.table [--only BERT Llama] [--write]

Each network is pruned tile-wise at 50 %, saved, loaded and swapped to the reference kernels. The program fails if the output
of the loaded or the swapped network differs from that of the masked one.
"""

import argparse
import copy
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

import sparsefront as sf
from experiments.harness import page
from experiments.networks.networks import NETWORKS, Inputs, Tiny
from sparsefront.measure.correctness import output_error
from sparsefront.pruning.layers import FIRST_CONVOLUTION
from sparsefront.pruning.layers import HEAD as NETWORK_HEAD

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
MARKS = ("<!-- networks -->", "<!-- end of networks -->")
HEAD = ("network", "from", "layers pruned", "left dense but for the ends", "blocks rewritten", "what is not, and why")
SPARSITY, GRANULARITY = 0.5, 16
ENDS = (FIRST_CONVOLUTION, NETWORK_HEAD)
SAME, SWAPPED = 1e-6, 1e-4  # relative tolerances in float32: after loading, and with another order of summation


def row_of(name: str, tiny: Tiny) -> list[str]:
    """The cells of a network.

    Raises:
        RuntimeError: the outputs of the loaded or swapped network differ.
    """
    torch.manual_seed(0)
    net, inputs = tiny.make().eval(), tiny.inputs()
    again = copy.deepcopy(net)
    masks = sf.prune(net, "tile_wise", SPARSITY, granularity=GRANULARITY, example_inputs=inputs, tell=len)
    expected = outputs(net, inputs)
    with tempfile.TemporaryDirectory() as folder:
        sf.save(Path(folder) / "pruned", net, masks)
        loaded = sf.load(Path(folder) / "pruned", again)
    compare(f"{name}, loaded", outputs(again, inputs), expected, SAME)
    report = sf.swap(again, loaded, inputs, kernel="reference")
    compare(f"{name}, swapped", outputs(again, inputs), expected, SWAPPED)
    rewritten, left = report.fusion.rewritten, report.fusion.unsupported
    dense = Counter(_short(why) for why in report.dense_layers.values() if why not in ENDS)
    reasons = [f"{count} × {why}" for why, count in Counter(left.values()).items()]
    return [
        name,
        tiny.source,
        str(len(masks)),
        "; ".join(f"{count} × {why}" for why, count in dense.items()),
        f"{len(rewritten)} of {len(rewritten) + len(left)}" if rewritten or left else "none found",
        "; ".join(reasons),
    ]


def _short(why: str) -> str:
    return re.sub(r"^convolution in \d+ groups of one input channel$", "depthwise convolution", why)


@torch.no_grad()
def outputs(net: nn.Module, inputs: Inputs) -> object:
    return net(**inputs) if isinstance(inputs, Mapping) else net(*inputs)


def compare(what: str, found: object, expected: object, allowed: float) -> None:
    """Raises:
    RuntimeError: the relative error of two outputs exceeds `allowed`.
    """
    error = output_error(found, expected)
    if not error <= allowed:
        raise RuntimeError(f"{what}: relative error {error:.1e} against the masked network, more than {allowed:.0e}")


def rows(names: Sequence[str]) -> Iterator[list[str]]:
    logging.getLogger("sparsefront").setLevel(logging.ERROR)
    for name in names:
        yield row_of(name, NETWORKS[name])


def main() -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--write", action="store_true", help="into docs/networks.md, of all networks")
    asked = parser.parse_args()
    if asked.write and len(asked.only) < len(NETWORKS):
        parser.error("--write takes all networks")
    text = page.table(HEAD, rows(asked.only))
    print(*text, sep="\n")
    if asked.write:
        page.fill(PAGE, MARKS, "\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
