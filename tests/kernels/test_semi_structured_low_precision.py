"""2:4 in 8 bits around cuSPARSELt's call, which a product of the same values stands in for."""

from dataclasses import replace

import pytest
import torch
from drawn_masks import n_of_m
from random_problems import TOLERANCE, fault_of
from sparsefront_kernels import Problem, UnsupportedProblem, entry
from sparsefront_kernels.quantized.quantize import PRECISIONS, quantize
from sparsefront_kernels.quantized.weight import pack_quantized
from sparsefront_kernels.semi_structured import low_precision
from sparsefront_kernels.semi_structured.cusparselt import DEFAULT, Algorithm
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.semi_structured.low_precision import ALPHA, CusparseltQuantizedWeight

N, K = 64, 96


def packed_weight(precision: str, order: torch.Tensor | None = None) -> CusparseltQuantizedWeight:
    """As `pack` gives it, but on a CPU, and uncompressed."""
    mask = n_of_m(2, 4)(N, K)
    if order is not None:
        mask = mask[:, order.argsort()]
    stored = SemiStructuredFormat.from_dense(torch.randn(N, K), mask, input_order=order)
    whole = pack_quantized(stored, precision)
    values = whole.values if order is None else whole.values.view(torch.uint8)[:, order].view(whole.values.dtype)
    alpha = whole.scales.flatten() * ALPHA if precision == "int8" else None
    return CusparseltQuantizedWeight(N, K, values, whole.scales, alpha, stored.input_order, whole)


@pytest.fixture
def asked(monkeypatch):
    """The calls of cuSPARSELt: rows of X and the algorithm."""
    seen = []

    def product(compressed, x, alpha, out_dtype, transpose_result, alg_id, split_k, split_k_mode):
        assert x.shape[1] % 16 == 0 and x.stride() == (1, K)
        seen.append((x.shape[1], Algorithm(alg_id, split_k, split_k_mode)))
        sums = compressed.double() @ x.double()
        sums = (sums if alpha is None else sums * alpha.double()[:, None]).to(out_dtype)
        return sums.t().contiguous() if transpose_result else sums

    monkeypatch.setattr(torch, "_cslt_sparse_mm", product)
    return seen


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ordered", [False, True])
def test_scales_padding_and_order(precision, dtype, ordered, asked):
    packed = packed_weight(precision, torch.randperm(K) if ordered else None)
    kernel, x = entry(f"semi_structured_{precision}"), torch.randn(21, K).to(dtype)
    of_x, of_w = kernel.multiplied(x, packed)
    bias = torch.randn(N)
    for one in (x, quantize(x, precision)):
        y = kernel.run(one, packed, bias, activation="relu")
        expected = (of_x.double() @ of_w.double().t() + bias).relu()
        assert y.shape == (21, N) and y.is_contiguous()
        assert y.dtype == (dtype if one is x else torch.float32)
        assert not fault_of(y, expected, TOLERANCE[dtype])
    residual = torch.randn(N, 21).to(dtype)
    y = kernel.run(x, packed, bias, layout="row_to_feature", activation="relu", residual=residual)
    assert not fault_of(y.t(), expected + residual.double().t(), TOLERANCE[dtype])
    assert asked == [(32, DEFAULT)] * 3
    assert kernel.run(x[:0], packed).shape == (0, N)
    assert kernel.run(x[:0], packed, layout="row_to_feature").shape == (N, 0)


def test_the_op_is_what_it_says(asked):
    for precision in PRECISIONS:
        packed = packed_weight(precision)
        x = quantize(torch.randn(5, K), precision).values
        checks = ("test_faketensor",)  # the other one multiplies e4m3, which a CPU cannot
        for by_output in (False, True):
            arguments = (x, packed.compressed, packed.alpha, None, N, torch.bfloat16, by_output)
            torch.library.opcheck(low_precision.semi_structured_sums.overload, arguments, test_utils=checks)


def test_packing_off_the_gpu_is_unsupported():
    stored = SemiStructuredFormat.from_dense(torch.zeros(N, K), torch.zeros(N, K) > 0)
    for precision in PRECISIONS:
        with pytest.raises(UnsupportedProblem, match=f"semi_structured_{precision}: packs on a CUDA device"):
            entry(f"semi_structured_{precision}").pack(stored)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_algorithms_are_checked_under_load(precision):
    mask = n_of_m(2, 4)(256, 512)
    stored = SemiStructuredFormat.from_dense(torch.randn(256, 512), mask).to("cuda", torch.bfloat16)
    kernel = entry(f"semi_structured_{precision}")
    packed, problem = kernel.pack(stored), Problem(77, 512, 256, torch.bfloat16, "cuda")
    for layout in kernel.layouts:
        assert kernel.tunable.candidates(packed, replace(problem, layout=layout)), layout
    assert not low_precision.right_under_load(
        lambda: torch.zeros(256, 80, device="cuda"), torch.ones(256, 80, device="cuda").double(), 5e-3
    )
