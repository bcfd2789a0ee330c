"""Without nvcc the CUDA kernels are rejected, Triton's run, and both stand in the row."""

import pytest
import torch
from sparsefront_kernels import Problem, cuda_library
from torch import nn

from sparsefront.export.packed_layers import store
from sparsefront.inference.autotune import find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.problems import observe_problems
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


@pytest.mark.gpu
def test_the_row_holds_what_ran_and_why_not_the_cuda_kernel(exported):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(256, 512)).eval()

    device, masked, net = torch.device("cuda"), network(), network()
    export = exported(masked, VectorWise(32), 0.5, ["0"])
    inputs = {"input": torch.randn(128, 256, device=device, dtype=torch.float16)}
    problems = observe_problems(masked.to(device, torch.float16), inputs, ["0"])
    report = swap_layers(net, export, problems, KernelChoice("sparse"), device=device, dtype=torch.float16)
    layer = report.to_json()["layers"]["0"]
    assert layer["chosen"].startswith("gathered_triton")
    assert "needs CUDA's compiler nvcc" in layer["unsupported"]["gathered_sm90"]
