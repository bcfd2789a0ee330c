"""The n:m kernels for few rows: bytes that packing saves, indices across words, shared memory."""

import torch
from drawn_masks import n_of_m
from sparsefront_kernels import FORMATS
from sparsefront_kernels.cuda.launch import HOPPER
from sparsefront_kernels.cuda.thread_per_output import (
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


def test_bytes_of_weights_and_indices():
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
    assert fitting.chunks < wide.chunks and fitting.shared_bytes <= HOPPER.block_bytes
