"""Distances between outputs: NaN, other shapes and other structures never count as agreement."""

import math
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels.bench.correctness import products_in
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.measure.correctness import (
    NETWORK_ERROR_LIMIT,
    PRODUCT_ERROR_LIMIT,
    TF32_ERROR_LIMIT,
    network_error_limit,
    output_error,
    product_error_limit,
    relative_error,
)


def test_error_is_relative():
    expected = torch.tensor([3.0, 4.0])
    assert relative_error(expected, expected) == 0.0
    assert relative_error(expected + torch.tensor([0.0, 0.5]), expected) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([math.nan, 1.0]), torch.ones(2)),
        (torch.tensor([math.inf, 1.0]), torch.ones(2)),
        (torch.ones(2), torch.tensor([math.inf, 1.0])),
        (torch.tensor([math.inf]), torch.tensor([math.inf])),
        (torch.ones(2, 1), torch.ones(2)),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_incomparable_is_infinitely_far(actual, expected):
    assert relative_error(actual, expected) == math.inf


def test_zeros_agree_with_zeros():
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0


def test_worst_tensor_of_an_output():
    expected = {"a": torch.ones(4), "b": (torch.ones(4), torch.arange(4))}
    actual = {"a": torch.ones(4), "b": (torch.ones(4) * 1.5, torch.zeros(4).long())}  # integers are not evaluated
    assert output_error(actual, expected) == pytest.approx(0.5)


def test_outputs_of_different_structure():
    with pytest.raises(ValueError):
        output_error((torch.ones(1),), (torch.ones(1), torch.ones(1)))


@pytest.mark.parametrize(
    ("output", "of_type"),
    [
        (SimpleNamespace(logits=torch.ones(3)), "SimpleNamespace"),
        (torch.arange(3), "Tensor"),
        ({"classes": torch.arange(3), "state": None}, "dict"),
        ((), "tuple"),
    ],
)
def test_outputs_without_a_floating_tensor(output, of_type):
    with pytest.raises(InvalidSetting, match=f"net={of_type}: must return a floating-point tensor, or a mapping, data"):
        output_error(output, output)


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 4e-6), ("tf32", TF32_ERROR_LIMIT)])
def test_rounded_float32_products(precision, limit):
    """With PyTorch's new switch, after which its old one cannot be asked any more."""
    with products_in(precision):
        assert product_error_limit(torch.float32) == limit
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            assert product_error_limit(dtype) == PRODUCT_ERROR_LIMIT[dtype]


OLD_SWITCH = """
import torch
from sparsefront.measure.correctness import product_error_limit
for precision in ("highest", "high", "medium", "highest"):
    torch.set_float32_matmul_precision(precision)
    print(product_error_limit(torch.float32))
torch.backends.fp32_precision = "tf32"
torch.backends.cuda.matmul.fp32_precision = "none"
print(product_error_limit(torch.float32))
"""


def test_old_switch_counts_too(programs):
    """In another process: they cannot be put back."""
    done = programs.run(["-c", OLD_SWITCH])
    assert done.returncode == 0, done.stderr
    assert [float(line) for line in done.stdout.split()] == [4e-6, 1e-3, 1e-3, 4e-6, 1e-3]


def test_coarsest_dtype_bounds_rounding():
    norm, product = nn.LayerNorm(4), nn.Linear(4, 4).bfloat16()
    assert network_error_limit(norm) == NETWORK_ERROR_LIMIT[torch.float32]
    assert network_error_limit(nn.Sequential(norm, product)) == NETWORK_ERROR_LIMIT[torch.bfloat16]
