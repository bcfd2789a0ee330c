"""Products in low precision, against float64 of the operands that they multiply."""

import math
import re
from functools import partial

import pytest
import torch
from drawn_masks import blocks, free, n_of_m, tile_wise
from random_problems import TOLERANCE, fault_of
from sparsefront_kernels import FORMATS, Problem, UnsupportedProblem, best_kernel, entries, entry, find
from sparsefront_kernels.dense.low_precision import dense_int8
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.quantized.quantize import PRECISIONS, Quantized, dequantize, quantize
from sparsefront_kernels.semi_structured import torchao

CPU = torch.device("cpu")
N, K = 256, 384
WEIGHTS = {
    "dense": (free(0.7), {}),
    "blocked": (blocks(64, 128, 0.5), {"block": [64, 128]}),
    "semi_structured": (n_of_m(2, 4), {}),
    "gathered": (tile_wise(64, 0.4), {"tile": 64}),
}
LOW = [kernel for precision in PRECISIONS for kernel in entries(precision)]

REFERENCES = [kernel for kernel in LOW if kernel.is_reference]


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


@pytest.mark.parametrize("kernel", REFERENCES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_reference_is_the_quantized_product(kernel, dtype):
    x, stored, packed = operands(kernel, dtype, CPU)
    bias, residual = torch.randn(N), torch.randn(45, N).to(dtype)
    for epilogue in ({}, {"activation": "gelu", "residual": residual}):
        y = kernel.run(x, packed, bias, **epilogue)
        assert y.dtype == dtype and not fault_of(y, exact(kernel, x, packed, bias, **epilogue), TOLERANCE[dtype])
    near = x[1:].float() @ stored.to_dense().float().t()
    error = torch.linalg.norm(kernel.run(x[1:], packed).float() - near) / torch.linalg.norm(near)
    assert 1e-3 < error < 0.05, "what quantizing costs"


@pytest.mark.parametrize("kernel", REFERENCES, ids=lambda kernel: kernel.name)
def test_reference_takes_x_quantized(kernel):
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
    with pytest.raises(ValueError, match="x is torch.* the weight torch"):
        kernel.run(other, packed)


def test_nan_reaches_its_row_alone():
    for kernel in REFERENCES:
        x, _, packed = operands(kernel, torch.float16, CPU, m=5)
        x[1, 3], x[3, 5], x[4] = math.nan, math.inf, 0.0
        lost = kernel.run(x, packed).isnan().all(dim=1)
        assert lost.tolist() == [False, True, False, True, False], kernel.name
        assert not kernel.run(x, packed)[[0, 2, 4]].isnan().any()


@pytest.mark.parametrize("name", ["blocked_fp8_reference", pytest.param("blocked_fp8_sm90", marks=pytest.mark.gpu)])
def test_kernel_quantizes_for_the_next(name):
    kernel, device = entry(name), CPU if name == "blocked_fp8_reference" else torch.device("cuda")
    x, _, packed = operands(kernel, torch.float16, device)
    bias = torch.randn(N, device=device)
    y = kernel.quantized_run(x, packed, bias, activation="gelu")
    assert isinstance(y, Quantized) and y.scales.shape == (45, N // 128)
    expected = exact(kernel, x, packed, bias, "gelu")
    step = y.scales.double().repeat_interleave(128, dim=1) * 448 * 2**-4
    assert ((dequantize(y).double() - expected).abs() <= step).all()


@pytest.mark.parametrize(
    ("kernel", "changes", "reason"),
    [
        ("dense_fp8", {}, "needs a CUDA device, not cpu"),
        ("dense_fp8", {"n": 40}, r"takes N and K in multiples of 16, the weight is \[40, 384\]"),
        ("dense_fp8", {"dtype": torch.float64}, "quantizes float16, bfloat16 or float32, not torch.float64"),
        ("dense_int8", {}, "needs a CUDA device, not cpu"),
        ("dense_int8", {"k": 20}, r"takes N and K in multiples of 8, the weight is \[256, 20\]"),
        ("blocked_fp8_sm90", {}, "needs a CUDA device, not cpu"),
        ("blocked_fp8_sm90", {"dtype": torch.float32}, "takes float16 or bfloat16, not torch.float32"),
        ("semi_structured_fp8", {}, "needs a CUDA device, not cpu"),
        ("semi_structured_fp8", {"k": 48}, r"cuSPARSELt needs N and K in multiples of 32 .* \[256, 48\]"),
        ("semi_structured_fp8_torchao", {}, "needs a CUDA device, not cpu"),
        ("semi_structured_fp8_torchao", {"n": 96}, r"takes N in multiples of 64 and K of 128, .* \[96, 384\]"),
        ("semi_structured_fp8_torchao", {"dtype": torch.float32}, "takes float16 or bfloat16, not torch.float32"),
        ("semi_structured_int8", {"m": 3_000_000}, "cuSPARSELt takes X of 2097120 rows"),
        ("gathered_int8_few_rows", {"m": 65}, "takes up to 64 rows of X, not 65"),
        ("dense_int8_few_rows", {"dtype": torch.float32}, "takes float16 or bfloat16, not torch.float32"),
    ],
)
def test_unsupported_problems_say_why(kernel, changes, reason):
    problem = Problem(**({"m": 64, "k": K, "n": N, "dtype": torch.float16, "device": CPU} | changes))
    shape, family = (problem.n, problem.k), entry(kernel).family
    stored = FORMATS[family].from_dense(torch.zeros(shape), torch.zeros(shape) > 0, **WEIGHTS[family][1])
    with pytest.raises(UnsupportedProblem, match=f"{kernel}: {reason}"):
        entry(kernel).require_supported(stored, problem)


def test_exported_int8_takes_few_rows():
    """cuBLASLt wants 17 rows, which a program adds to any number."""
    packed = entry("dense_int8").pack(weight_of("dense"))

    class Product(torch.nn.Module):
        def forward(self, x):
            return dense_int8(x, packed)

    rows = {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
    program = torch.export.export(Product(), (torch.randn(32, K),), dynamic_shapes=rows).module()
    for m in (1, 16, 17, 64):
        x = torch.randn(m, K)
        assert torch.equal(program(x), dense_int8(x, packed))


@pytest.mark.parametrize("name", ["dense_fp8", "dense_int8"])
def test_misfitting_operands_are_rejected(name):
    kernel = entry(name)
    x, _, packed = operands(kernel, torch.float16, CPU)
    for wrong, bias, message in (
        (x[:, :-16], None, f"with K = {K}"),
        (x, torch.ones(3), r"bias must be a float \[256\]"),
        (Quantized(quantize(x, kernel.precision)[0], torch.ones(7, 1)), None, r"scales must be \[45, groups\]"),
        (quantize(x, kernel.precision, group=128), None, "takes scales per row"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.run(wrong, packed, bias)


@pytest.mark.parametrize(
    ("family", "mask", "parameters", "shape"),
    [
        ("gathered", tile_wise(128, 0.3), {"tile": 128}, (257, 83)),
        ("gathered", tile_wise(24, 0.4), {"tile": 24}, (50, 304)),  # padded, and outputs without inputs
        ("gathered", free(0.0), {"tile": 32}, (40, 16)),
        ("gathered", tile_wise(200, 0.4), {"tile": 200}, (411, 29)),
        ("dense", free(0.9), {}, (192, 528)),
        ("dense", free(0.9), {}, (50, 83)),
    ],
)
@pytest.mark.parametrize("m", [1, 17, 70])
def test_few_rows_with_int8_weights(family, mask, parameters, shape, m, device):
    (n, k), kernel = shape, entry(f"{family}_int8_few_rows")
    weight = (torch.randn(n, k, device=device) / math.sqrt(k)).half()
    stored = FORMATS[family].from_dense(weight, mask(n, k).to(device), **parameters)
    packed, x = kernel.pack(stored), torch.randn(m, 2 * k, device=device).half()[:, :k]
    rounded = kernel.multiplied(x, packed)[1]
    assert (rounded - stored.to_dense()).abs().max() <= weight.abs().max() / 127
    bias, residual = torch.randn(n, device=device), torch.randn(n, m, device=device).half().t()
    for added, epilogue in ((None, {}), (bias, {"activation": "gelu", "residual": residual})):
        y = kernel.run(x, packed, added, **epilogue)
        assert y.dtype == x.dtype and not fault_of(y, exact(kernel, x, packed, added, **epilogue), 1e-3)
    with pytest.raises(ValueError, match="multiplies X in 16 bits, not quantized"):
        kernel.run(quantize(x, "int8"), packed)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [kernel for kernel in LOW if kernel.requires_cuda], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m", [6, 17, 45, 256])
def test_kernel_is_the_quantized_product(kernel, dtype, m):
    device = torch.device("cuda")
    stored = weight_of(kernel.family, dtype).to(device)
    if (reason := kernel.unsupported_reason(stored, Problem(m, K, N, dtype, device))) is not None:
        assert re.search("takes float16 or bfloat16|torchao is not installed|takes up to 64 rows", reason), reason
        return
    x, stored, packed = operands(kernel, dtype, device, m)
    bias, residual = torch.randn(N, device=device), torch.randn(m, N, device=device).to(dtype)
    allowed = max(TOLERANCE[dtype], 1e-3)  # sums in fp8 have fewer bits than float32
    for epilogue in ({}, {"activation": "gelu", "residual": residual}):
        for added in (None, bias, bias.to(dtype)):
            y = kernel.run(x, packed, added, **epilogue)
            assert y.dtype == dtype and not fault_of(y, exact(kernel, x, packed, added, **epilogue), allowed)
    ways = [quantize(x, kernel.precision)] if kernel.takes_scales else []
    if "group128" in kernel.takes_scales:
        ways.append(quantize(x, kernel.precision, group=128))
    if "static" in kernel.takes_scales:
        ways.append(quantize(x, scale=torch.tensor(1e4 / 448, device=device)))
    for quantized in ways:
        y = kernel.run(quantized, packed, bias)
        assert y.dtype == dtype and not fault_of(y, exact(kernel, quantized, packed, bias), allowed)
    x[3, 7], x[5, 9] = math.nan, -math.inf
    lost = ~kernel.run(x, packed).isfinite()
    assert lost.any(dim=1).nonzero().flatten().tolist() == [3, 5]
    kept = kernel.multiplied(x, packed)[1] != 0  # by some weight, which 2:4 has not for each
    assert lost[3, kept[:, 7]].all() and lost[5, kept[:, 9]].all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_2_4_gives_each_layout(precision):
    kernel, device = entry(f"semi_structured_{precision}"), torch.device("cuda")
    x, _, packed = operands(kernel, torch.float16, device)
    residual = torch.randn(N, len(x), device=device).half()
    y = kernel.run(x, packed, layout="row_to_feature", activation="relu", residual=residual)
    assert y.is_contiguous() and not fault_of(y.t(), exact(kernel, x, packed, None, "relu", residual.t()), 1e-3)


@pytest.mark.gpu
def test_compiled_and_recorded():
    device = torch.device("cuda")
    stored = weight_of("semi_structured", torch.bfloat16).to(device)
    found = ["dense_fp8", "blocked_fp8_sm90", "semi_structured_fp8", "semi_structured_int8"]
    found += ["gathered_int8_few_rows", "dense_int8_few_rows"]
    if entry(torchao.KERNEL).supports(stored, Problem(45, K, N, torch.bfloat16, device)):
        found.append(torchao.KERNEL)
    for kernel in map(entry, found):
        x, _, packed = operands(kernel, torch.bfloat16, device)
        bias = torch.randn(N, device=device)
        expected = exact(kernel, x, packed, bias, "gelu")
        run = partial(kernel.run, packed=packed, bias=bias, activation="gelu")
        assert not fault_of(torch.compile(run, fullgraph=True)(x), expected, 5e-3), kernel.name
        run(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run(x)
        graph.replay()
        assert not fault_of(y, expected, 5e-3), kernel.name
