"""Products in low precision, against float64 of the operands that they multiply."""

import math

import pytest
import torch
from drawn_masks import blocks, free, n_of_m
from random_problems import TOLERANCE, fault_of
from sparsefront_kernels import FORMATS, Problem, best_kernel, entries, entry, find, labeled, names, reference
from sparsefront_kernels.common.epilogue import with_epilogue
from sparsefront_kernels.quantized.quantize import PRECISIONS, Quantized, dequantize, quantize

CPU = torch.device("cpu")
N, K = 256, 384
WEIGHTS = {
    "dense": (free(0.7), {}),
    "blocked": (blocks(64, 128, 0.5), {"block": [64, 128]}),
    "semi_structured": (n_of_m(2, 4), {}),
}
LOW = [kernel for precision in PRECISIONS for kernel in entries(precision)]


def weight_of(family, dtype=torch.float32):
    mask, parameters = WEIGHTS[family]
    weight = torch.randn(N, K, generator=torch.Generator().manual_seed(1)).to(dtype) / math.sqrt(K)
    return FORMATS[family].from_dense(weight, mask(N, K), **parameters)


def exact(kernel, x, packed, bias=None, activation="none", residual=None):
    """Float64 of what the kernel multiplies."""
    of_x, of_w = (part.double() for part in kernel.multiplied(x, packed))
    return with_epilogue(of_x @ of_w.t(), bias, activation, residual)


def operands(kernel, dtype, device, m=45):
    """x with an outlier, and the packed weight with its format."""
    stored = weight_of(kernel.family, dtype).to(device)
    x = torch.randn(m, K, generator=torch.Generator().manual_seed(m)).to(device, dtype)
    x[0, 0] = 1e4
    return x, stored, kernel.pack(stored)


def test_entries_of_a_precision():
    assert names("fp8")[:3] == ("dense_fp8_reference", "blocked_fp8_reference", "semi_structured_fp8_reference")
    assert names("int8")[:2] == ("dense_int8_reference", "semi_structured_int8_reference")
    assert all(kernel.precision == "none" for kernel in entries())
    assert not set(names()) & {kernel.name for kernel in LOW}
    for kernel in LOW:
        assert entry(kernel.name) is kernel and labeled(kernel.name) == (kernel, None)
        assert kernel.multiplied is not None and "row" in kernel.takes_scales
    assert reference("blocked", "fp8").name == "blocked_fp8_reference"
    with pytest.raises(ValueError, match="gathered has no kernel in fp8; there are dense, blocked, semi_structured"):
        reference("gathered", "fp8")


def test_a_cpu_takes_the_reference():
    stored = weight_of("blocked")
    problem = Problem(8, K, N, torch.float32, CPU)
    assert best_kernel(stored, problem, "fp8") is entry("blocked_fp8_reference")
    found = find(stored, problem, "fp8")
    assert "stored as blocked, not dense" in found.unsupported["dense_fp8_reference"]
    with pytest.raises(ValueError, match="no kernel can run"):
        best_kernel(stored, problem, "int8")
    narrow = FORMATS["blocked"].from_dense(torch.ones(64, 64), torch.ones(64, 64) > 0, block=[64, 64])
    reason = entry("blocked_fp8_reference").unsupported_reason(narrow, Problem(8, 64, 64, torch.float32, CPU))
    assert reason == "takes blocks whose inputs are a multiple of 128, not 64"
    assert "torch.float64" in entry("blocked_fp8_reference").unsupported_reason(
        stored, Problem(8, K, N, torch.float64, CPU)
    )


@pytest.mark.parametrize("kernel", [kernel for kernel in LOW if kernel.is_reference], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_reference_is_the_product_of_the_quantised_operands(kernel, dtype):
    x, stored, packed = operands(kernel, dtype, CPU)
    bias, residual = torch.randn(N), torch.randn(45, N).to(dtype)
    for epilogue in ({}, {"activation": "gelu", "residual": residual}):
        y = kernel.run(x, packed, bias, **epilogue)
        assert y.dtype == dtype and not fault_of(y, exact(kernel, x, packed, bias, **epilogue), TOLERANCE[dtype])
    near = x[1:].float() @ stored.to_dense().float().t()
    error = torch.linalg.norm(kernel.run(x[1:], packed).float() - near) / torch.linalg.norm(near)
    assert 1e-3 < error < 0.05, "what quantising costs"


@pytest.mark.parametrize("kernel", [kernel for kernel in LOW if kernel.is_reference], ids=lambda kernel: kernel.name)
def test_reference_takes_x_quantised_in_each_way(kernel):
    x, _, packed = operands(kernel, torch.float16, CPU)
    ways = {"row": quantize(x, kernel.precision), "group128": quantize(x, kernel.precision, group=128)}
    if kernel.precision == "fp8":
        ways["static"] = quantize(x, scale=torch.tensor(0.01))
    assert torch.equal(kernel.run(ways["row"], packed), kernel.run(x, packed))
    for way, quantized in ways.items():
        assert way in kernel.takes_scales
        y = kernel.run(quantized, packed)
        assert y.dtype == torch.float16 and not fault_of(y, exact(kernel, quantized, packed), 1e-3), way
    other = quantize(x, "int8" if kernel.precision == "fp8" else "fp8")
    with pytest.raises(ValueError, match="x is quantised to"):
        kernel.run(other, packed)


def test_nan_and_infinities_reach_their_rows_alone():
    for kernel in LOW:
        if not kernel.is_reference:
            continue
        x, _, packed = operands(kernel, torch.float16, CPU, m=5)
        x[1, 3], x[3, 5], x[4] = math.nan, math.inf, 0.0
        lost = kernel.run(x, packed).isnan().all(dim=1)
        assert lost.tolist() == [False, True, False, True, False], kernel.name
        assert not kernel.run(x, packed)[[0, 2, 4]].isnan().any()


def test_a_kernel_may_quantise_for_the_next_product():
    kernel = entry("blocked_fp8_reference")
    x, _, packed = operands(kernel, torch.float16, CPU)
    bias = torch.randn(N)
    y = kernel.quantized_run(x, packed, bias, activation="gelu")
    assert isinstance(y, Quantized) and y.scales.shape == (45, N // 128)
    expected = exact(kernel, x, packed, bias, "gelu")
    step = y.scales.double().repeat_interleave(128, dim=1) * 448 * 2**-4
    assert ((dequantize(y).double() - expected).abs() <= step).all()
