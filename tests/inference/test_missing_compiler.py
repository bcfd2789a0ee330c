"""Without nvcc the CUDA kernels are rejected, Triton's run, and both stand in the row."""

import pytest
import torch
from sparsefront_kernels import Problem, cuda_library

from sparsefront.export.packed_layers import store
from sparsefront.inference.autotune import find_candidates
from sparsefront.patterns.vector_wise import VectorWise


@pytest.fixture(autouse=True)
def no_compiler(tmp_path, monkeypatch):
    """Neither a compiler nor a library that was built before."""
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_library, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(cuda_library, "compiler", lambda: None)
    cuda_library._warn_once.cache_clear()


def test_unsupported_with_the_reason_logged_once(monkeypatch, caplog):
    """As on a Hopper GPU; asking needs none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    weight, pattern = torch.randn(64, 48), VectorWise(32)
    mask = pattern.mask(weight.abs(), 0.5)
    stored = store(weight, mask, pattern.storage(weight.shape, 0.5))
    problem = Problem(128, 48, 64, torch.float16, "cuda")
    found = find_candidates(
        stored, mask, problem, lambda kernel, layout: kernel.family == "gathered" and kernel.requires_cuda
    )
    assert "gathered_triton" in [candidate.entry.name for candidate in found.usable]
    assert "needs CUDA's compiler nvcc" in found.unsupported["gathered_sm90"]
    said = [record.getMessage() for record in caplog.records if "nvcc" in record.getMessage()]
    assert len(said) == 1, "one line for all libraries"
