"""The n:m kernels for few rows: bytes that packing saves, indices across words, launches; and, on a GPU, chains of products."""

from dataclasses import replace

import pytest
import torch
from drawn_masks import n_of_m
from sparsefront_kernels import FORMATS, entry
from sparsefront_kernels.cuda import thread_per_output
from sparsefront_kernels.cuda.thread_per_output import (
    SHARED_BYTES,
    ThreadPerOutputLaunch,
    ThreadPerOutputProblem,
    packed_chunks,
    segments,
)
from sparsefront_kernels.n_m import mma
from sparsefront_kernels.n_m.small_m import index_bits, pack_for_small_m


def stored_n_m(n_kept, m, groups, outputs, device="cpu"):
    mask = n_of_m(n_kept, m)(outputs, groups * m)
    weight = torch.randn(outputs, groups * m).half() / 30
    return FORMATS["n_m"].from_dense(weight.to(device), mask.to(device), n=n_kept, m=m)


def test_bytes_are_those_of_weights_and_indices():
    assert [index_bits(m) for m in (1, 4, 5, 16, 17, 32, 33, 64)] == [2, 2, 4, 4, 5, 5, 6, 6]
    packed = pack_for_small_m(stored_n_m(3, 32, groups=32, outputs=64))
    kept = 64 * 32 * 3
    assert (packed.values.nbytes, packed.indices.nbytes) == (2 * kept, kept * 5 // 8)
    for n_kept, groups in ((1, 128), (2, 64)):  # two bits each
        packed = mma.pack_for_mma(stored_n_m(n_kept, 4, groups, 64))
        assert (packed.values.nbytes, packed.indices.nbytes) == (2 * 64 * 128, 64 * 128 // 4)


def test_numbers_may_straddle_words():
    """Indices of five bits: the seventh begins two bits before the end of the first word."""
    indices = torch.arange(32)[None].expand(32, 32)
    _, words = packed_chunks(torch.zeros(32, 32).half(), indices, bits=5)
    first = words[0, 0].view(-1)[:4].tolist()
    last = words[0, 0].view(-1)[4 * 32].item()
    number = sum((word & 0xFFFFFFFF) << 32 * at for at, word in enumerate([*first, last]))
    assert [number >> 5 * j & 31 for j in range(32)] == list(range(32))


def test_wide_slots_take_several_segments():
    wide = ThreadPerOutputProblem(8, 20480, 4096, 3, 32, 4, 5)
    fitting = segments(wide, ThreadPerOutputLaunch(1, 8, 1, 8))
    assert fitting.chunks < wide.chunks and fitting.shared_bytes <= SHARED_BYTES


def test_impossible_launches():
    problem = ThreadPerOutputProblem(1, 4096, 4096, 3, 32, 2, 5)
    for launch in (
        ThreadPerOutputLaunch(2, 8, 1, 1),  # 16 warps
        ThreadPerOutputLaunch(1, 8, 9, 1),
        ThreadPerOutputLaunch(1, 8, 1, 3),
        ThreadPerOutputLaunch(1, 8, 1, 1, "never"),
    ):
        assert not thread_per_output.possible(problem, launch)
    four, of_32 = (
        mma.mma_problem(ThreadPerOutputProblem(16, 4096, 4096, *pattern)) for pattern in ((2, 4, 2, 2), (3, 32, 2, 5))
    )
    staged = ThreadPerOutputLaunch(4, 4, 1, 16, stages=2)
    assert mma.possible(four, staged) and not mma.possible(four, replace(staged, stages=0)), "weights need a ring"
    assert not mma.possible(replace(four, m=32), replace(staged, rows=32)), "16 warps with 32 sums a lane"
    assert not mma.possible(of_32, replace(staged, shares=2, rows=8)), "left operands have 16 rows"


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", ["n_m_small_m", "n_m_mma"])
def test_products_wait_for_the_one_before(name):
    """Each reads what the one before wrote; started early, it must not read too soon."""
    stored, kernel = [stored_n_m(2, 4, 512, 2048, "cuda") for _ in range(6)], entry(name)
    packed = [kernel.pack(one) for one in stored]
    for m in (1, 3) * 5:
        y = x = torch.randn(m, 2048, device="cuda").half()
        expected = x.double()
        for one in stored:
            expected = (expected @ one.to_dense().double().t()).half().double()
        for one in packed:
            y = kernel.run(y, one)
        assert torch.linalg.norm(y.double() - expected) <= 2e-3 * torch.linalg.norm(expected)
