"""The custom ops as PyTorch sees them: schema, fake kernels, compiled graphs, CUDA graphs, streams and devices.

Every kernel of the registry is tried: on the CPU those that Triton's interpreter runs, in two layouts; on a GPU all in all.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from in_layout import InLayout, assert_names_wrong_operands, every_layout, is_tried_here
from random_problems import precision_allowed
from sparsefront_kernels import Problem
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor

# A weight that asks much of the family's kernels comes first; a kernel that does not support it is given another of the family.
TELLING = ("gathered-uneven", "n_m-3:7-permuted", "semi_structured-permuted", "blocked-4x64", "gathered_overlay", "csr")
DTYPES = (torch.float16, torch.float32, torch.bfloat16)
KERNELS = [
    kernel
    for kernel in every_layout()
    if (kernel.requires_cuda or kernel.name == "csr_reference") and is_tried_here(kernel)
]


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    with precision_allowed(request.param):
        yield request.param


def taken(kernel, cases, device, m, wanted=TELLING):
    """(weight, problem) that the kernel takes, or a skip with its own reason."""
    ours = [case for case in cases.values() if case.family == kernel.family and case.mask(*case.shape).any()]
    reasons = []
    for case in sorted(ours, key=lambda case: case.name not in wanted):
        for dtype in DTYPES:
            stored = case.build()
            problem = Problem(m, stored.shape[1], stored.shape[0], dtype, device, kernel.layout)
            reasons.append(kernel.unsupported_reason(stored, problem))
            if reasons[-1] is None:
                return stored.to(device, dtype), problem
    pytest.skip(reasons[0])


@pytest.fixture
def setting(kernel, cases, device, activations):
    """(x, packed weight, bias) for the kernel, or a skip with the kernel's own reason."""
    stored, problem = taken(kernel, cases, device, 6)
    return activations(problem), kernel.pack(stored), torch.randn(problem.n, device=device)


def rows_of(x, kernel):
    """The dimension of X that counts its rows."""
    return 1 if kernel.layout in X_FEATURE_MAJOR else 0


def test_opcheck(kernel, setting):
    """PyTorch's own checks of the ops behind the kernel, on the arguments that the kernel hands them."""
    x, packed, bias = setting
    with RecordCalls() as calls:
        y = kernel.run(x, packed, bias)
        kernel.run(x, packed, None)
        if kernel.fuses_epilogue:
            kernel.run(x, packed, None, activation="gelu", residual=torch.randn_like(y))
    assert len(calls.made) >= (3 if kernel.fuses_epilogue else 2)
    for op, arguments, keywords in calls.made:
        torch.library.opcheck(op, arguments, keywords)


class RecordCalls(torch.utils._python_dispatch.TorchDispatchMode):
    """Keep every call of one of our ops."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "sparsefront":
            self.made.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_compiled_for_any_number_of_rows(kernel, setting):
    x, packed, bias = setting
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: kernel.run(x, packed, bias), fullgraph=True, backend="eager", dynamic=True)
    for rows in (6, 5, 3):
        part = x.narrow(rows_of(x, kernel), 0, rows)
        torch.testing.assert_close(compiled(part), kernel.run(part, packed, bias), rtol=0, atol=0)


def test_no_rows_give_no_rows(kernel, setting):
    x, packed, bias = setting
    y = kernel.run(x.narrow(rows_of(x, kernel), 0, 0), packed, bias)
    assert y.shape == ((len(bias), 0) if kernel.layout in Y_FEATURE_MAJOR else (0, len(bias)))


def test_wrong_operands_are_named(kernel, setting):
    """CUDA kernels: `test_packed_weights.py`."""
    if kernel.is_reference or torch.cuda.is_available():
        pytest.skip("references take more than kernels do; on a GPU the check is the same")
    assert_names_wrong_operands(kernel, setting[0], setting[1], len(setting[2]))


MOST = 4


@dataclass(frozen=True, eq=False)
class FewRowsWeight:
    n: int
    k: int
    values: Tensor


def few_rows(x, packed, bias, *, x_feature_major=False, y_feature_major=False, activation="none", residual=None):
    """A kernel that takes up to `MOST` rows, and writes Y by outputs."""
    x, residual = (
        (x.t() if x_feature_major else x),
        (residual.t() if residual is not None and y_feature_major else residual),
    )
    assert len(x) <= MOST
    y = with_epilogue(x @ packed.values.t(), bias, activation, residual).t().contiguous()
    return y if y_feature_major else y.t()


FEW_ROWS = kernel_entry(
    "test_few_rows",
    "dense",
    weight=FewRowsWeight,
    run=few_rows,
    dense=lambda packed: packed.values,
    pack=lambda stored: FewRowsWeight(*stored.shape, stored.values),
    layouts=LAYOUTS,
    fuses_epilogue=True,
    transposed_y=True,
    most_rows=lambda packed: MOST,
)


@pytest.mark.parametrize("m", [MOST, 3 * MOST + 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_rows_than_a_kernel_takes(layout, m, activations, expected_product, assert_close):
    kernel, stored = InLayout(FEW_ROWS, layout), DenseFormat((10, 6), torch.randn(10, 6))
    problem = Problem(m, 6, 10, torch.float32, "cpu", layout)
    x, residual, bias = activations(problem), activations(problem, "plain", problem.y_shape), torch.randn(10)

    def run(x):
        return kernel.run(x, kernel.pack(stored), bias, activation="gelu", residual=residual)

    y = run(x)
    assert_close(y, expected_product(x, stored, bias, layout, activation="gelu", residual=residual))
    test_opcheck(kernel, (x, kernel.pack(stored), bias))
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x), y, rtol=0, atol=0)


@pytest.mark.gpu
class TestOnGPU:
    def test_more_rows_than_chosen_for(self, kernel, cases, device, activations, expected_product, assert_close):
        stored, problem = taken(kernel, cases, device, 16)
        packed = kernel.pack(stored)
        for m in (65, 120, 4097):
            x, bias = activations(replace(problem, m=m)), torch.randn(problem.n, device=device)
            assert_close(
                kernel.run(x, packed, bias), expected_product(x, stored, bias, kernel.layout), kernel.dtype_name
            )

    @pytest.fixture(params=["cuda"])
    def device(self, request):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return torch.device(request.param)

    @pytest.mark.parametrize("m", [6, 64])
    def test_graph_replay_equals_eager(self, m, kernel, cases, device, activations):
        stored, problem = taken(kernel, cases, device, m)
        x, packed, bias = activations(problem), kernel.pack(stored), torch.randn(problem.n, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # which may still be writing the operands
        with torch.cuda.stream(side):  # warm up off the default stream, as capturing asks for
            for _ in range(3):
                kernel.run(x, packed, bias)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = kernel.run(x, packed, bias)
        x.copy_(torch.randn_like(x))
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, kernel.run(x, packed, bias))

    def test_inductor_agrees_with_eager(self, kernel, setting):
        if kernel.layout != kernel.layouts[-1]:
            pytest.skip("Inductor sees the same op in each layout")
        x, packed, bias = setting
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: torch.relu(kernel.run(x, packed, bias)), fullgraph=True)
        torch.testing.assert_close(compiled(x), torch.relu(kernel.run(x, packed, bias)), rtol=0, atol=0)

    def test_runs_on_the_current_stream(self, kernel, setting):
        x, packed, bias = setting
        expected = kernel.run(x, packed, bias)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            late = torch.full_like(x, torch.nan)
            torch.cuda._sleep(50_000_000)  # a kernel launched on another stream would overtake the copy
            late.copy_(x)
            y = kernel.run(late, packed, bias)
        side.synchronize()
        assert torch.equal(y, expected)

    def test_run_on_another_device(self, kernel, cases, activations, expected_product, assert_close):
        if torch.cuda.device_count() < 2:
            pytest.skip("one CUDA device")
        device = torch.device("cuda", 1)
        stored, problem = taken(kernel, cases, device, 6)
        x = activations(problem)
        with torch.cuda.device(0):
            y = kernel.run(x, kernel.pack(stored), None)
        assert y.device == device
        assert_close(y, expected_product(x, stored, None, kernel.layout), kernel.dtype_name)


@pytest.mark.gpu
def test_activations_past_two_to_the_31(kernel, cases, expected_product, assert_close, most_of_the_memory):
    if not torch.cuda.is_available() or not kernel.requires_cuda:
        pytest.skip("no CUDA device, or a kernel of the CPU")
    dense_enough = ("gathered-kept", "blocked-32x32", "n_m-2:4", "csr-kept", "semi_structured", "gathered_overlay-kept")
    dense_enough += ("dense-wide",)
    small, _ = taken(kernel, cases, "cuda", 1, wanted=dense_enough)
    n, k = small.shape
    m = 2**31 // min(n, k) + 257  # both X and Y pass 2^31 elements
    problem = Problem(m, k, n, small.dtype, "cuda", kernel.layout)
    if reason := kernel.unsupported_reason(small, problem):
        pytest.skip(reason)
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 2 * small.values.element_size() * m * (n + k) + 2**32:
        pytest.skip("not enough GPU memory")  # a kernel may copy X and Y into another layout
    x = torch.empty(problem.x_shape, dtype=small.dtype, device="cuda").normal_()
    y = kernel.run(x, kernel.pack(small), None)
    for first in (0, m // 2, m - 300):
        part = x.narrow(rows_of(x, kernel), first, 300)
        result = y.narrow(1 if kernel.layout in Y_FEATURE_MAJOR else 0, first, 300)
        assert_close(result, expected_product(part, small, None, kernel.layout), kernel.dtype_name)
