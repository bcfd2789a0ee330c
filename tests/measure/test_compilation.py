"""Code is generated while others may time; the GPU is used no sooner than it is shared."""

import shutil
import warnings

import pytest
import torch
from torch import nn

from sparsefront import gpu
from sparsefront.gpu import exclusive, shared
from sparsefront.measure.execution_mode import compile_unshared, first_call

CPU = torch.device("cpu")


@pytest.fixture
def modes(tmp_path, monkeypatch) -> list:
    """(what happens, this process's mode on a stand-in for a GPU), of generating code and of running it."""
    pytest.importorskip("fcntl", reason="locks of POSIX systems")
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    seen = []

    def generate(graph, inputs):
        seen.append(("generates", gpu._access_to(CPU).mode))

        def run(*values):
            seen.append(("runs", gpu._access_to(CPU).mode))
            return graph(*values)

        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", generate)
    torch.compiler.reset()
    yield seen
    torch.compiler.reset()


def test_only_the_first_run_takes_the_lock_by_itself(modes):
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    compiled = compile_unshared(net)
    with torch.inference_mode(), shared(CPU):
        first_call(lambda: compiled(x), CPU)
        with exclusive(CPU):
            torch.testing.assert_close(compiled(x), net(x))
    assert modes == [("generates", None), ("runs", "shared"), ("runs", "exclusive")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_default_backend_compiles_it():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.randn(2, 4)
    with torch.inference_mode():
        torch.testing.assert_close(compile_unshared(net)(x), net(x))


def test_the_first_call_hides_one_warning_of_torch_and_no_other():
    text = "`isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(treespec, TreeSpec)` instead."

    def call():
        warnings.warn_explicit(text, FutureWarning, "copyreg.py", 99, module="copyreg")
        warnings.warn_explicit(text, FutureWarning, "ours.py", 1, module="sparsefront.ours")
        warnings.warn_explicit("something else", FutureWarning, "copyreg.py", 99, module="copyreg")
        return 3

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert first_call(call, CPU) == 3
    assert [(warning.filename, str(warning.message)) for warning in seen] == [
        ("ours.py", text),
        ("copyreg.py", "something else"),
    ]
