"""Launch parameters of the blocked Triton kernel: what is worth timing, and what a launch remembers."""

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.blocked.triton import (
    MOST_CANDIDATES,
    SHARED_BYTES,
    BlockedTritonProblem,
    _shared_bytes,
    candidates,
    untuned,
)
from sparsefront_kernels.common.launch import LaunchShape


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("block", [(128, 128), (64, 64), (16, 16), (4, 64)])
@pytest.mark.parametrize("m", [1, 256, 4096])
def test_candidates_begin_with_the_untuned_launch_and_fit(m, block, itemsize):
    problem = BlockedTritonProblem(m, 4096, 4096, *block, blocks=500, itemsize=itemsize)
    found = candidates(problem, 132)
    assert found[0] == untuned(problem, 132) and 1 < len(found) <= MOST_CANDIDATES
    assert len(set(found)) == len(found)
    for launch in found[1:]:
        assert _shared_bytes(problem, launch) <= SHARED_BYTES
        assert launch.block_k >= 16 and launch.block_m >= 16


def test_a_remembered_launch_is_used(nothing_tuned, monkeypatch):
    kernel, asked = entry("blocked_triton"), []
    from sparsefront_kernels.blocked import triton_spmm

    launch = triton_spmm.launch_blocked_triton
    monkeypatch.setattr(
        triton_spmm,
        "launch_blocked_triton",
        lambda *operands, **given: (asked.append(given["launch"]), launch(*operands, **given)),
    )
    stored = FORMATS["blocked"].from_dense(torch.randn(32, 48), torch.ones(32, 48, dtype=torch.bool), block=(16, 16))
    packed, problem = kernel.pack(stored), Problem(5, 48, 32, torch.float32, "cpu")
    chosen = LaunchShape(16, 16, 16, 4, 2)
    kernel.tunable.remember(packed, problem, chosen, 1.0)
    x = torch.randn(5, 48)
    torch.testing.assert_close(kernel.run(x, packed, None), x @ stored.to_dense().t(), rtol=1e-4, atol=1e-4)
    assert asked == [chosen]
