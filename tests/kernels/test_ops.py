"""The custom ops as PyTorch sees them: schema, fake kernels, compiled graphs, CUDA graphs, streams and devices."""

import pytest
import torch
from sparsefront_kernels import Problem, entry
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR

KERNELS = {
    "gathered_triton": "gathered-uneven",
    "gathered_triton_feature_major": "gathered-uneven",
    "gathered_triton_row_to_feature": "gathered-uneven",
    "gathered_triton_feature_to_row": "gathered-uneven",
    "blocked_triton": "blocked-4x64",
    "n_m_triton": "n_m-3:7-permuted",
    "gathered_overlay_triton": "gathered_overlay",
    "csr_reference": "csr",
    "csr_torch": "csr",
    "semi_structured_torch": "semi_structured-permuted",
}


@pytest.fixture(params=KERNELS)
def kernel(request):
    return entry(request.param)


@pytest.fixture
def setting(kernel, cases, device, activations):
    """(x, prepared weight, bias) for the kernel, or a skip with the kernel's own reason."""
    dtype = torch.float16
    stored = cases[KERNELS[kernel.name]].build().to(device, dtype)
    problem = Problem(6, stored.shape[1], stored.shape[0], dtype, device, kernel.layout)
    if reason := kernel.refusal(stored, problem):
        pytest.skip(reason)
    return activations(problem), kernel.prepare(stored), torch.randn(problem.n, device=device)


def test_opcheck(kernel, setting, monkeypatch):
    """PyTorch's own checks of the op behind the kernel, on the arguments that the kernel hands it."""
    x, prepared, bias = setting
    op = {
        "gathered": torch.ops.sparsefront.gathered_spmm,
        "blocked": torch.ops.sparsefront.blocked_spmm,
        "n_m": torch.ops.sparsefront.n_m_spmm,
        "csr": torch.ops.sparsefront.csr_spmm,
        "gathered_overlay": torch.ops.sparsefront.csr_spmm,  # one of its two; the other is that of gathered
        "semi_structured": torch.ops.sparsefront.semi_structured_spmm,
    }[kernel.family].default
    calls = []
    with RecordCalls(op, calls):
        kernel.run(x, prepared, bias)
        kernel.run(x, prepared, None)
    assert len(calls) == 2
    for arguments in calls:
        torch.library.opcheck(op, arguments)


class RecordCalls(torch.utils._python_dispatch.TorchDispatchMode):
    """Keep the arguments of every call of one op."""

    def __init__(self, op, calls):
        super().__init__()
        self.op, self.calls = op, calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is self.op:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))


def test_compiles_without_a_graph_break(kernel, setting):
    x, prepared, bias = setting
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: kernel.run(x, prepared, bias) * 2, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), kernel.run(x, prepared, bias) * 2, rtol=0, atol=0)


def test_compiled_for_any_number_of_rows(kernel, setting):
    x, prepared, bias = setting
    rows_dim = 1 if kernel.layout in X_FEATURE_MAJOR else 0
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: kernel.run(x, prepared, bias), fullgraph=True, backend="eager", dynamic=True)
    for rows in (6, 5, 3):
        part = x.narrow(rows_dim, 0, rows)
        torch.testing.assert_close(compiled(part), kernel.run(part, prepared, bias), rtol=0, atol=0)


def test_no_rows_give_no_rows(kernel, setting):
    x, prepared, bias = setting
    empty = x.narrow(1 if kernel.layout in X_FEATURE_MAJOR else 0, 0, 0)
    assert kernel.run(empty, prepared, bias).numel() == 0


@pytest.mark.gpu
class TestOnGPU:
    @pytest.fixture(params=["cuda"])
    def device(self, request):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return torch.device(request.param)

    def test_graph_replay_equals_eager(self, kernel, setting):
        x, prepared, bias = setting
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # warm up off the default stream, as capturing asks for
            for _ in range(3):
                kernel.run(x, prepared, bias)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = kernel.run(x, prepared, bias)
        x.copy_(torch.randn_like(x))
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, kernel.run(x, prepared, bias))

    def test_inductor_agrees_with_eager(self, kernel, setting):
        x, prepared, bias = setting
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: torch.relu(kernel.run(x, prepared, bias)), fullgraph=True)
        torch.testing.assert_close(compiled(x), torch.relu(kernel.run(x, prepared, bias)), rtol=0, atol=0)

    def test_runs_on_the_current_stream(self, kernel, setting):
        x, prepared, bias = setting
        expected = kernel.run(x, prepared, bias)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            late = torch.full_like(x, torch.nan)
            torch.cuda._sleep(50_000_000)  # a kernel launched on another stream would overtake the copy
            late.copy_(x)
            y = kernel.run(late, prepared, bias)
        side.synchronize()
        assert torch.equal(y, expected)

    def test_runs_on_another_device_than_the_current(self, kernel, cases):
        if torch.cuda.device_count() < 2:
            pytest.skip("one CUDA device")
        device = torch.device("cuda", 1)
        stored = cases[KERNELS[kernel.name]].build().to(device, torch.float16)
        x = torch.randn(6, stored.shape[1], device=device, dtype=torch.float16)
        x = x.t().contiguous() if kernel.layout in X_FEATURE_MAJOR else x
        with torch.cuda.device(0):
            y = kernel.run(x, kernel.prepare(stored), None)
        y = y.t() if kernel.layout in Y_FEATURE_MAJOR else y
        rows = x.t() if kernel.layout in X_FEATURE_MAJOR else x
        expected = rows.double() @ stored.to_dense().double().t()
        assert y.device == device
        assert torch.linalg.norm(y.double() - expected) <= 1e-3 * torch.linalg.norm(expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", [*(name for name in KERNELS if name.startswith("gathered_triton")), "blocked_triton", "n_m_triton"]
)
def test_activations_past_two_to_the_31(name, cases):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    kernel = entry(name)
    stored = cases[{"gathered": "gathered-kept", "blocked": "blocked-32x32", "n_m": "n_m-2:4"}[kernel.family]].build()
    stored = stored.to("cuda", torch.float16)
    n, k = stored.shape
    m = 2**31 // min(n, k) + 257  # both X and Y pass 2^31 elements
    if torch.cuda.mem_get_info()[0] < 2 * m * (n + k) + 2**32:
        pytest.skip("not enough GPU memory")
    shape = (k, m) if kernel.layout in X_FEATURE_MAJOR else (m, k)
    x = torch.empty(shape, dtype=torch.float16, device="cuda").normal_()
    y = kernel.run(x, kernel.prepare(stored), None)
    rows = x.t() if kernel.layout in X_FEATURE_MAJOR else x
    outputs = y.t() if kernel.layout in Y_FEATURE_MAJOR else y
    for part in (slice(0, 300), slice(m // 2, m // 2 + 300), slice(m - 300, m)):
        expected = rows[part].double() @ stored.to_dense().double().t()
        assert torch.linalg.norm(outputs[part].double() - expected) <= 1e-3 * torch.linalg.norm(expected)
