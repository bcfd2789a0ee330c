"""The Hopper kernel starts before the kernels before it have ended: it must neither read nor write too early."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered.hopper.launch import TABLE_FIELDS, launch_pairs_spmm
from sparsefront_kernels.gathered.hopper.parameters import PairLaunch
from sparsefront_kernels.gathered.hopper.tables import pair_tables

REPLAYS = 20
# (side of the square weight, columns, launch): grids that leave room for the next kernel's blocks, and ones that do not
CASES = [
    (512, 256, PairLaunch(64, 4, 4, 2)),
    (1024, 256, PairLaunch(64, 8, 4, 1)),
    (2048, 512, PairLaunch(128, 6, 4, 1)),
    (1024, 256, PairLaunch(64, 4, 4, 2, splits=2)),
    (1024, 512, PairLaunch(128, 6, 4, 1, splits=4)),
    (2048, 2048, PairLaunch(256, 4, 4, 1)),
    (1024, 256, PairLaunch(64, 8, 4, 1, prefetch=True)),
    (512, 256, PairLaunch(64, 4, 4, 2, prefetch=True)),
]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def product_of(side, launch):
    """(x, y) -> None writes y = W · x for a random weight, [side, side], of which a tenth is kept."""
    mask = (torch.rand(side // 128, side, device="cuda") < 0.1).repeat_interleave(128, 0)
    weight = torch.randn(side, side, device="cuda", dtype=torch.float16) * 0.1
    tables = pair_tables(FORMATS["gathered"].from_dense(weight, mask, tile=128))
    tensors = {name: getattr(tables, name) for name in TABLE_FIELDS}
    return lambda x, y, overlap: launch_pairs_spmm(x, y, bias=None, launch=replace(launch, overlap=overlap), **tensors)


def chain(multiply, sources, overlap):
    """Products whose X was written right before, whose X is overwritten right after, and whose Y is; what they gave."""
    x, given = torch.empty_like(sources[0]), []
    for source in sources:
        y, z, w, last = (torch.full_like(x, torch.nan) for _ in range(4))
        x.copy_(source)
        multiply(x, y, overlap)
        multiply(y, z, overlap)
        multiply(z, x, overlap)  # x is still being read by the first product unless this one waits
        multiply(x, w, overlap)
        copied = y.clone()
        y.zero_()
        multiply(copied, last, overlap)
        copied.relu_()
        given += [y, z, w, last, copied]
    return given


@pytest.mark.parametrize(("side", "columns", "launch"), CASES, ids=str)
def test_chains_give_the_same_bits_with_and_without(side, columns, launch):
    torch.manual_seed(side)
    multiply = product_of(side, launch)
    sources = [torch.randn(side, columns, device="cuda", dtype=torch.float16) for _ in range(8)]
    expected = [y.clone() for y in chain(multiply, sources, overlap=False)]
    torch.cuda.synchronize()
    assert all(map(torch.equal, expected, chain(multiply, sources, overlap=True)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = chain(multiply, sources, overlap=True)
    for _ in range(REPLAYS):
        for y in given:
            y.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, expected, given))


def test_capture_on_two_streams_after_a_memset():
    side, columns = 1024, 256
    multiply = product_of(side, PairLaunch(64, 4, 4, 2))
    x = torch.randn(side, columns, device="cuda", dtype=torch.float16)
    expected = [torch.empty_like(x) for _ in range(3)]
    for source, target in zip([x, *expected], expected, strict=False):
        multiply(source, target, overlap=False)
    other, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    first, second, third = (torch.empty_like(x) for _ in range(3))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        first.zero_()
        multiply(x, first, overlap=True)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            multiply(first, second, overlap=True)
        third.copy_(x)
        torch.cuda.current_stream().wait_stream(other)
        multiply(second, third, overlap=True)
    for _ in range(REPLAYS):
        for y in (first, second, third):
            y.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, expected, (first, second, third)))
