"""The rule that quantizes, in plain operations, in Triton and in a compiled graph."""

import math

import pytest
import torch
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.quantized.quantize import (
    LARGEST,
    PRECISIONS,
    SMALLEST_SCALE,
    Quantized,
    _empty,
    count_saturated,
    dequantize,
    quantize,
    quantize_activated,
)
from sparsefront_kernels.quantized.triton_quantize import launch_quantize

WAYS = [("fp8", None), ("fp8", 128), ("int8", None), ("int8", 128)]


def hard(m: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random rows among which are zeros, outliers, tiny values, NaN and both infinities."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m * k)).to(dtype)
    x[0] = 0
    x[1, ::7] = 1e4
    x[2] *= 1e-7
    x[3, 1], x[4, 2], x[5, k - 1] = math.nan, math.inf, -math.inf
    x[6] = math.nan
    return x


def in_triton(
    x: torch.Tensor, precision: str, group: int | None, scale: torch.Tensor | None = None, activation: str = "none"
) -> Quantized:
    values, scales = _empty(x, precision, group, scale)
    launch_quantize(x, values, scales, group, scale, LARGEST[precision], SMALLEST_SCALE, activation)
    return Quantized(values, scales if scale is None else scale.reshape(1, 1))


def same(left: Quantized, right: Quantized) -> bool:
    """Bit by bit, but that any NaN is any other, and that Triton's interpreter knows e4m3 neither rounding nor NaN."""
    cut_off = left.values.is_floating_point() and left.values.device.type == "cpu"
    left, right = (Quantized(*(part.float().cpu().nan_to_num(nan=1e30) for part in one)) for one in (left, right))
    if not cut_off:
        return torch.equal(left.values, right.values) and torch.equal(left.scales, right.scales)
    error = (left.values - right.values).abs() * (right.values < 1e30)
    return bool((error <= right.values.abs() / 2 + 2**-7).all()) and torch.equal(left.scales, right.scales)


def half_step(values: torch.Tensor) -> torch.Tensor:
    """Half the distance to the next value, of what was quantized, in units of the scale."""
    if values.dtype == torch.int8:
        return torch.full(values.shape, 0.5, dtype=torch.float64)
    exponents = torch.frexp(values.double().nan_to_num().abs().clamp(min=2.0**-6)).exponent - 1
    return torch.ldexp(torch.full(values.shape, 0.5, dtype=torch.float64), exponents - 3)


@pytest.mark.parametrize(("precision", "group"), WAYS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_value_is_the_nearest(precision, group, dtype):
    x = hard(9, 384, dtype)
    quantized = quantize(x, precision, group)
    scales = quantized.scales.double().repeat_interleave(384 // quantized.scales.shape[1], dim=1)
    error = (dequantize(quantized).double() - x.double()).abs() / scales
    known = x.isfinite() & scales.isfinite()
    assert (error <= half_step(quantized.values) * (1 + 1e-5))[known].all()
    assert known[:3].all()
    assert quantized.scales.shape == (9, 3 if group else 1) and quantized.scales.dtype == torch.float32
    assert quantized.precision == precision


def test_nan_and_infinities_are_seen():
    x = hard(9, 256)
    lost = ~x.isfinite()
    for group in (None, 128):
        assert torch.equal(dequantize(quantize(x, "fp8", group)).isnan(), lost)
        groups = lost.view(9, -1, group or 256).any(dim=2)
        whole = groups.repeat_interleave(group or 256, dim=1)
        assert torch.equal(dequantize(quantize(x, "int8", group)).isnan(), whole)


def test_tiny_and_huge_rows():
    x = torch.tensor([[1e-44, 0.0], [3.3e38, -3e38], [1e-36, 1e-37]])
    for precision in PRECISIONS:
        found = dequantize(quantize(x, precision))
        assert found.isfinite().all() and torch.allclose(found[1], x[1], rtol=0.07)


def test_a_static_scale_saturates_and_counts():
    x = torch.tensor([[1.0, 447.0, 1e4], [math.nan, -math.inf, -450.0], [0.0, 2.3, -449.0]])
    scale = torch.tensor(1.0)
    values, scales = quantize(x, scale=scale)
    assert scales.shape == (1, 1)
    expected = torch.tensor([[1.0, 448.0, 448.0], [math.nan, math.nan, -448.0], [0.0, 2.25, -448.0]])
    assert torch.equal(values.float().nan_to_num(nan=7), expected.nan_to_num(nan=7))
    assert count_saturated(x, scale) == 3 and count_saturated(x, scale * 100) == 0
    assert Quantized(values, scales).row_scales().tolist() == [[1.0]] * 3


@pytest.mark.parametrize(
    ("x", "settings", "message"),
    [
        (torch.ones(2, 8), {"precision": "fp4"}, "precision 'fp4' is not one of fp8, int8"),
        (torch.ones(8), {}, r"x must be float16, bfloat16 or float32 \[M, K\]"),
        (torch.ones(2, 8).double(), {}, "not torch.float64"),
        (torch.ones(2, 24), {"group": 16}, "group must be a power of two that divides K = 24, not 16"),
        (torch.ones(2, 8), {"scale": torch.ones(2)}, r"scale must be one float32 on cpu, not torch.float32 \[2\]"),
        (torch.ones(2, 8), {"scale": torch.ones(1), "precision": "int8"}, "a static scale is for fp8"),
    ],
)
def test_what_cannot_be_quantized_says_why(x, settings, message):
    with pytest.raises(ValueError, match=message):
        quantize(x, **settings)
    with pytest.raises(ValueError, match=r"or one static \[1, 1\], not \[2, 2\]"):
        quantize(torch.ones(2, 8), group=4).row_scales()


@pytest.mark.parametrize(("precision", "group"), WAYS)
def test_triton_gives_the_same_bits(precision, group, device):
    for m, k, dtype in [(9, 384, torch.float16), (7, 8192 + 256, torch.float32)]:
        x = hard(m, k, dtype)
        found = in_triton(x.to(device), precision, group)
        assert same(found, quantize(x, precision, group)), (m, k)
    if precision == "fp8" and group is None:
        scale = torch.tensor([0.013])
        found = in_triton(x.to(device), precision, None, scale.to(device))
        assert same(found, quantize(x, scale=scale))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("precision", "group"), WAYS)
def test_an_activation_goes_before(activation, precision, group, device):
    """Triton's GELU is right to 5e-4, so that values are neighbors."""
    x = 2 * torch.randn(9, 384, generator=torch.Generator().manual_seed(0))
    expected = quantize_activated(x, activation, precision, group)
    assert same(expected, quantize(ACTIVATIONS[activation](x), precision, group))
    found = in_triton(x.to(device), precision, group, activation=activation)
    assert torch.allclose(found.scales.cpu(), expected.scales, rtol=1e-3)
    apart = (found.values.cpu().float() - expected.values.float()).abs()
    step = 2 * half_step(expected.values).float()
    if precision == "fp8" and device.type == "cpu":
        step = step + expected.values.float().abs() / 2  # as `same` has it
    assert (apart <= step + LARGEST[precision] * 2e-3).all()


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "group"), WAYS)
def test_on_a_gpu_and_compiled(precision, group):
    x = hard(333, 1024, torch.bfloat16).cuda()
    expected = quantize(x.cpu(), precision, group)
    assert same(quantize(x, precision, group), expected)
    compiled = torch.compile(lambda x: quantize(x, precision, group), fullgraph=True)(x)
    assert torch.allclose(compiled.scales.cpu(), expected.scales, rtol=1e-6, equal_nan=True)
    left, right = compiled.values.cpu().float().nan_to_num(), expected.values.float().nan_to_num()
    assert (left != right).float().mean() < 1e-3, "rarely a neighbor"
    assert ((left - right).abs() <= 2 * half_step(expected.values).float() * 1.01).all()
