"""The Hopper kernel starts before the kernels before it have ended: it must neither read nor write too early."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered.sm90 import Sm90Launch, launch_gathered_sm90
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90
from sparsefront_kernels.gathered.sm90_schedule import ALL
from sparsefront_kernels.operands import NO_EPILOGUE

REPLAYS = 20
# (side of the square weight, columns, launch): grids that leave room for the next kernel's blocks, and ones that do not
CASES = [
    (512, 256, Sm90Launch(64, 4, 4, 2)),
    (1024, 256, Sm90Launch(64, 8, 4, 1)),
    (2048, 512, Sm90Launch(128, 6, 4, 1)),
    (1024, 256, Sm90Launch(64, 4, 4, 2, splits=2)),
    (1024, 512, Sm90Launch(128, 6, 4, 1, splits=4)),
    (2048, 2048, Sm90Launch(256, 4, 4, 1)),
    (1024, 256, Sm90Launch(256, 4, ALL, 1, shares=True)),
    (2048, 512, Sm90Launch(128, 6, ALL, 1, shares=True)),
    (1024, 256, Sm90Launch(64, 8, 4, 1, prefetch=True)),
    (512, 256, Sm90Launch(64, 4, 4, 2, prefetch=True)),
]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def product_of(side, launch):
    """(x, y) -> None writes y = W · x for a random weight, [side, side], of which a tenth is kept."""
    mask = (torch.rand(side // 128, side, device="cuda") < 0.1).repeat_interleave(128, 0)
    weight = torch.randn(side, side, device="cuda", dtype=torch.float16) * 0.1
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(weight, mask, tile=128))
    return lambda x, y, pdl: launch_gathered_sm90(x, y, packed, NO_EPILOGUE, replace(launch, pdl=pdl))


def chain(multiply, sources, pdl):
    """Products whose X was written right before, whose X is overwritten right after, and whose Y is; what they gave."""
    x, given = torch.empty_like(sources[0]), []
    for source in sources:
        y, z, w, last = (torch.full_like(x, torch.nan) for _ in range(4))
        x.copy_(source)
        multiply(x, y, pdl)
        multiply(y, z, pdl)
        multiply(z, x, pdl)  # x is still being read by the first product unless this one waits
        multiply(x, w, pdl)
        copied = y.clone()
        y.zero_()
        multiply(copied, last, pdl)
        copied.relu_()
        given += [y, z, w, last, copied]
    return given


@pytest.mark.parametrize(("side", "columns", "launch"), CASES, ids=str)
def test_chains_give_the_same_bits(side, columns, launch):
    torch.manual_seed(side)
    multiply = product_of(side, launch)
    sources = [torch.randn(side, columns, device="cuda", dtype=torch.float16) for _ in range(8)]
    expected = [y.clone() for y in chain(multiply, sources, pdl=False)]
    torch.cuda.synchronize()
    assert all(map(torch.equal, expected, chain(multiply, sources, pdl=True)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = chain(multiply, sources, pdl=True)
    for _ in range(REPLAYS):
        for y in given:
            y.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, expected, given))


def test_capture_on_two_streams():
    side, columns = 1024, 256
    multiply = product_of(side, Sm90Launch(64, 4, 4, 2))
    x = torch.randn(side, columns, device="cuda", dtype=torch.float16)
    expected = [torch.empty_like(x) for _ in range(3)]
    for source, target in zip([x, *expected], expected, strict=False):
        multiply(source, target, pdl=False)
    other, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    first, second, third = (torch.empty_like(x) for _ in range(3))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        first.zero_()
        multiply(x, first, pdl=True)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            multiply(first, second, pdl=True)
        third.copy_(x)
        torch.cuda.current_stream().wait_stream(other)
        multiply(second, third, pdl=True)
    for _ in range(REPLAYS):
        for y in (first, second, third):
            y.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, expected, (first, second, third)))
