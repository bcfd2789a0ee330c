"""Which algorithm cuSPARSELt runs: what its search found for the very product and layout, and its default one otherwise."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels.bench import timing
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import entry
from sparsefront_kernels.semi_structured import cusparselt
from sparsefront_kernels.semi_structured.cusparselt import (
    ALGORITHMS,
    DEFAULT,
    Algorithm,
    CusparseltProblem,
    CusparseltWeight,
)
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.tuning import launches, tuned_kernel
from torch._subclasses.fake_tensor import FakeTensorMode

CPU = torch.device("cpu")
PACKED = CusparseltWeight(32, 64, torch.zeros(32, 36), None)


def in_new_process():
    tuned_kernel.cache_clear()
    launches.forget_choices()


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    in_new_process()
    yield
    in_new_process()


def problem(layout, m=13, dtype=torch.float16):
    return Problem(m, 64, 32, dtype, CPU, layout)


@pytest.mark.parametrize(("broken", "numbers"), [(None, [0, 2, 3]), (3, [0, 2])], ids=["all", "one breaks the device"])
def test_other_process_times_each_algorithm(monkeypatch, capsys, broken, numbers):
    def product(packed, x, transpose_result, alg_id, **others):
        assert transpose_result and tuple(x.shape) == (64, 16)
        if alg_id == broken:
            raise RuntimeError("CUDA error: an illegal instruction was encountered")
        if alg_id == 1:
            raise RuntimeError("not supported")

    plain = torch.randn
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "randn", lambda *shape, dtype, device: plain(*shape, dtype=dtype))
    monkeypatch.setattr(torch, "_cslt_compress", lambda weight: weight)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", product)
    monkeypatch.setattr(cusparselt, "TRANSPOSED_NUMBERS", 4)
    monkeypatch.setattr(timing, "time_calls", lambda calls, samples: calls[0]() or SimpleNamespace(median_us=7.0))
    monkeypatch.setattr(cusparselt.os, "_exit", lambda code: sys.exit(code))
    with pytest.raises(SystemExit) if broken else nullcontext():
        cusparselt.time_transposed_store('{"m": 13, "k": 64, "n": 32, "dtype": "float16", "device": 0}')
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"alg_id": number, "latency_us": 7.0} for number in numbers]


def test_new_rows_are_searched_once(monkeypatch):
    gpu, captures = torch.device("cuda"), [True]
    monkeypatch.setattr(launches, "_model", lambda device: "Some GPU")
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    monkeypatch.setattr(launches, "ALONE", [lambda device: nullcontext()])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[0])

    def product(m, found=None):
        def search():
            asked.append(m)
            return found

        return ALGORITHMS.launch_searched(CusparseltProblem(m, 64, 32, torch.float16, False, False), gpu, search)

    asked, tuned, best = [], replace(problem("row_major", 16), device=gpu), Algorithm(7, 2, 1)
    assert product(13, best) == DEFAULT and asked == [], "no search disturbs a capture"
    captures[0] = False
    assert [product(m, best) for m in (13, 16, 9)] == [best] * 3 and asked == [13], "all are padded to 16 rows"
    assert product(24) == product(24) == DEFAULT and asked == [13, 24], "one that failed is not repeated"
    in_new_process()
    assert product(16) == best and asked == [13, 24]
    assert product(24, best) == best and asked == [13, 24, 24], "a failure is not stored"
    assert ALGORITHMS.searched(PACKED, tuned) == best and not ALGORITHMS.measured(PACKED, tuned)
    ALGORITHMS.remember(PACKED, tuned, Algorithm(3), 1.0)
    assert ALGORITHMS.searched(PACKED, tuned) is None and ALGORITHMS.measured(PACKED, tuned)
    ALGORITHMS.try_out(PACKED, replace(tuned, m=32), Algorithm(4))
    assert product(32) == Algorithm(4) and len(asked) == 3


@pytest.mark.parametrize(
    ("found", "wrong", "expected"),
    [(Algorithm(7), False, Algorithm(7)), (Algorithm(7), True, DEFAULT), (DEFAULT, True, DEFAULT), (None, False, None)],
)
def test_wrong_algorithms_are_not_used(found, wrong, expected, monkeypatch):
    def search(compressed, x):
        assert x.stride() == (1, 64) and x.dtype == torch.float16
        if found is None:
            raise RuntimeError("out of memory")
        return found

    monkeypatch.setattr(cusparselt, "searched", search)
    monkeypatch.setattr(cusparselt, "right_under_load", lambda run, expected, allowed: not wrong)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", lambda packed, x, **algorithm: torch.ones(32, x.shape[1]))
    state = torch.get_rng_state()
    assert cusparselt._search_product(PACKED.compressed, torch.zeros(16, 64).half().t()) == expected
    assert torch.equal(torch.get_rng_state(), state), "a forward draws nothing"


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["row_major", "feature_major"])
def test_layer_searches_new_rows(layout):
    if not torch.backends.cusparselt.is_available():
        pytest.skip("this PyTorch was built without cuSPARSELt")
    kernel, like = entry("semi_structured_torch"), {"device": "cuda", "dtype": torch.bfloat16}
    weight = torch.randn(128, 256, **like)
    weight.view(128, -1, 4)[..., :2] = 0
    packed = kernel.pack(SemiStructuredFormat.from_dense(weight, weight != 0))
    shown = Problem(192, 256, 128, torch.bfloat16, torch.device("cuda"), layout)
    x = torch.randn(shown.x_shape, **like)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    kernel.run(x[:, :8] if layout == "feature_major" else x[:8], packed, None, layout=layout)  # handles are made
    with torch.cuda.graph(graph, stream=stream):
        kernel.run(x, packed, None, layout=layout)
    assert ALGORITHMS.searched(packed, shown) is None
    compiled = torch.compile(lambda x: kernel.run(x, packed, None, layout=layout), dynamic=False)
    y, again = (run(x) for run in (compiled, lambda x: kernel.run(x, packed, None, layout=layout)))
    assert ALGORITHMS.searched(packed, shown) is not None
    expected = (x.double() if layout == "row_major" else x.double().t()) @ weight.double().t()
    for one in (y, again):
        one = one if layout == "row_major" else one.t()
        torch.testing.assert_close(one.double(), expected, rtol=1.6e-2, atol=1e-1)


@pytest.mark.parametrize("m", [0, 13, 16])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("layout", entry("semi_structured_torch").layouts)
def test_the_product_in_every_layout(layout, permuted, m, monkeypatch):
    """cuSPARSELt's call is W · X; around it X is padded and put in order, and Y has the strides that the fake op says."""

    def product(compressed, x, bias=None, transpose_result=False, **algorithm):
        assert x.shape == (64, 16) and x.stride() == ((1, 64) if layout == "row_major" else (16, 1))
        y = compressed @ x + bias[:, None]
        return y.t().contiguous() if transpose_result else y

    monkeypatch.setattr(torch, "_cslt_sparse_mm", product)
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: nullcontext())
    order = torch.randperm(64).int() if permuted else None
    weight, bias, x = torch.randn(32, 64), torch.randn(32), torch.randn(m, 64)
    packed = CusparseltWeight(32, 64, weight if order is None else weight[:, order], order)
    kernel, shown = entry("semi_structured_torch"), problem(layout, m)
    y = kernel.run(
        x.view(shown.x_shape) if m == 0 else x if layout == "row_major" else x.t(), packed, bias, layout=layout
    )
    expected = x @ weight.t() + bias
    torch.testing.assert_close(y, expected.t() if layout == "feature_major" else expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = kernel.run(torch.empty(shown.x_shape), packed, bias, layout=layout)
    assert fake.shape == shown.y_shape and fake.stride() == y.stride()
