"""Which algorithm cuSPARSELt runs: what its search found for the very product and layout, and its default one otherwise."""

from dataclasses import asdict

import pytest
import torch
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import entry
from sparsefront_kernels.semi_structured import torch_spmm
from sparsefront_kernels.semi_structured import tuning as module
from sparsefront_kernels.semi_structured.algorithm import DEFAULT, Algorithm, searched
from sparsefront_kernels.semi_structured.torch_spmm import SemiStructuredPacked
from sparsefront_kernels.semi_structured.tuning import ALGORITHMS, CusparseltProblem
from sparsefront_kernels.tuning import launches, tuned_kernel

CPU = torch.device("cpu")
PACKED = SemiStructuredPacked(32, 64, torch.zeros(32, 36), None)


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    for cached in (tuned_kernel, launches.chosen_launch):
        cached.cache_clear()
    yield
    for cached in (tuned_kernel, launches.chosen_launch):
        cached.cache_clear()


def problem(layout, m=13, dtype=torch.float16):
    return Problem(m, 64, 32, dtype, CPU, layout)


@pytest.mark.parametrize(("layout", "strides"), [("row_major", (1, 64)), ("feature_major", (16, 1))])
def test_the_search_sees_the_product_as_it_will_run(monkeypatch, layout, strides):
    seen = []

    def search(packed, x):
        seen.append((packed, tuple(x.shape), x.stride(), x.dtype))
        return Algorithm(7, 2, 1)

    monkeypatch.setattr(module, "searched", search)
    assert ALGORITHMS.candidates(PACKED, problem(layout)) == [Algorithm(7, 2, 1), DEFAULT]
    assert seen == [(PACKED.packed, (64, 16), strides, torch.float16)], "rows are padded to a multiple of 8"


def test_nothing_is_searched_for_the_transposed_store(monkeypatch):
    monkeypatch.setattr(module, "searched", lambda packed, x: pytest.fail("an algorithm may end the process"))
    assert ALGORITHMS.candidates(PACKED, problem("feature_to_row")) == [DEFAULT]


def test_the_default_algorithm_is_offered_once(monkeypatch):
    monkeypatch.setattr(module, "searched", lambda packed, x: DEFAULT)
    assert ALGORITHMS.candidates(PACKED, problem("row_major")) == [DEFAULT]
    assert ALGORITHMS.candidates(PACKED, problem("row_major", m=0)) == [DEFAULT]


def test_what_was_measured_runs_in_its_layout_and_type_alone(monkeypatch):
    called = []

    def product(packed, x, bias=None, transpose_result=False, **algorithm):
        called.append((transpose_result, algorithm))
        return torch.zeros(32, x.shape[1])

    monkeypatch.setattr(torch, "_cslt_sparse_mm", product)
    best = Algorithm(3, 4, 1)
    ALGORITHMS.remember(PACKED, problem("feature_major"), best, 1.0)
    for rows, *others in (
        (13, torch.float16, True, False),
        (16, torch.float16, True, False),
        (17, torch.float16, True, False),
        (13, torch.bfloat16, True, False),
        (13, torch.float16, False, False),
        (13, torch.float16, True, True),
    ):
        torch_spmm._product(PACKED.packed, torch.zeros(64, 16), None, CusparseltProblem(rows, 64, 32, *others))
    expected = ((False, best), (False, best), *[(False, DEFAULT)] * 3, (True, DEFAULT))
    assert called == [(transposed, asdict(algorithm)) for transposed, algorithm in expected]
    assert ALGORITHMS.measured(PACKED, problem("feature_major"))
    assert not ALGORITHMS.measured(PACKED, problem("row_major"))
    assert not ALGORITHMS.measured(PACKED, problem("feature_major", dtype=torch.bfloat16))


def test_every_layout_may_be_tuned():
    kernel = entry("semi_structured_torch")
    assert kernel.layouts == ("row_major", "feature_major", "feature_to_row")
    assert all(kernel.tunable_in(layout) is ALGORITHMS for layout in kernel.layouts)


def test_older_pytorch_tells_the_number_alone(monkeypatch):
    monkeypatch.setattr(torch._C, "_cusparselt", None, raising=False)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", lambda packed, x: 5)
    assert searched(PACKED.packed, torch.zeros(64, 16)) == Algorithm(5)


@pytest.mark.parametrize("dim", [0, 1])
def test_x_is_copied_only_where_rows_are_missing(dim):
    whole, short = torch.ones(16, 16), torch.ones(13, 16) if dim == 0 else torch.ones(16, 13)
    assert torch_spmm._padded(whole, dim=dim) is whole
    padded = torch_spmm._padded(short, dim=dim)
    assert padded.shape == (16, 16) and padded.sum() == short.numel()
    assert padded.narrow(dim, 13, 3).count_nonzero() == 0
