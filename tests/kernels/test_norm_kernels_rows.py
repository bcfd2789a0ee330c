"""Norms of rows: plain operations against PyTorch's own, what the CUDA kernel takes, and the kernel against float64."""

import pytest
import torch
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.norm.rows import norm_rows, norm_rows_reference, rows_unsupported_reason
from sparsefront_kernels.quantized.quantize import quantize
from torch.nn import functional

KINDS = ["layer_norm", "rms_norm"]
LIMIT = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normed(rows, weight, bias, kind):
    """In float64, by PyTorch's own."""
    weight, bias = (None if part is None else part.double() for part in (weight, bias))
    if kind == "layer_norm":
        return functional.layer_norm(rows.double(), rows.shape[1:], weight, bias, 1e-6)
    y = functional.rms_norm(rows.double(), rows.shape[1:], weight, 1e-6)
    return y if bias is None else y + bias


def check(m, d, dtype, kind, device):
    """All operands there are, and none but x, on poisoned memory; twice the same bits."""
    x = (torch.randn(m, d + 8, device=device) + 1).to(dtype)[:, :d]
    residual, close = torch.randn(d, m, device=device).to(dtype).t(), {"rtol": LIMIT[dtype], "atol": LIMIT[dtype]}
    weight, bias, x_bias = torch.randn(d, device=device).to(dtype), *torch.randn(2, d, device=device)
    for operands in ((x_bias, residual, weight, bias), (None, residual, None, bias), (None, None, None, None)):
        adds = operands[1] is not None
        with poisoned_memory():
            y, sums, values, scales = norm_rows(x, *operands, 1e-6, kind, True, adds, True)
            only = norm_rows(x, *operands, 1e-6, kind, False, False, True)
        rounded = norm_rows_reference(x, *operands, 1e-6, kind)[1]
        torch.testing.assert_close(y.double(), normed(rounded, *operands[2:], kind), **close)
        if adds:
            total = x.double() + residual.double() + (0 if operands[0] is None else x_bias.double())
            torch.testing.assert_close(sums.double(), total, **close)
        expected = quantize(y, "fp8")
        assert torch.equal(values.view(torch.uint8), expected.values.view(torch.uint8))
        assert torch.equal(scales, expected.scales) and torch.equal(only[3], scales)
        assert torch.equal(only[2].view(torch.uint8), values.view(torch.uint8))
        assert len(only[0]) == len(only[1]) == 0 and len(sums) == (m if adds else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LIMIT, ids=str)
def test_plain_operations(dtype, kind):
    for m, d in ((1, 8), (5, 33), (3, 1030)):
        check(m, d, dtype, kind, "cpu")


def test_parts_left_to_plain_operations():
    vector = torch.ones(8, dtype=torch.float64)
    for d, dtype, vectors, reason in (
        (8, torch.float32, {}, "takes float16 or bfloat16"),
        (0, torch.float16, {}, "takes features in eights, not 0"),
        (12, torch.float16, {}, "takes features in eights, not 12"),
        (8200, torch.bfloat16, {}, "takes up to 8192 features, not 8200"),
        (8, torch.float16, {"weight": vector}, "takes no weight of torch.float64"),
        (8, torch.float16, {}, "needs a CUDA device, not cpu"),
    ):
        assert reason in rows_unsupported_reason(d, dtype, torch.device("cpu"), **vectors)


def test_misfitting_operands_are_rejected():
    x, vector = torch.randn(4, 8), torch.ones(8)
    for operands, message in (
        ({"x": x[0]}, "x must be"),
        ({"weight": vector[:4]}, r"weight must be a float \[8\]"),
        ({"residual": x[:3]}, r"residual must be torch.float32 \[4, 8\]"),
        ({"x_bias": vector}, "only where there is a residual"),
        ({"keep_sums": True}, "only where there is a residual"),
        ({"kind": "batch_norm"}, "'batch_norm' is not one of layer_norm, rms_norm"),
    ):
        given = {"x": x, "x_bias": None, "residual": None, "weight": None, "bias": None, "eps": 1e-6} | operands
        with pytest.raises(ValueError, match=message):
            norm_rows(**given)


@pytest.mark.parametrize("keep_sums", [False, True])
def test_gradients_are_those_of_layer_norm(keep_sums):
    x, residual = (torch.randn(6, 8, requires_grad=True) for _ in range(2))
    vectors = [torch.randn(8, requires_grad=True) for _ in range(3)]
    leaves = (x, vectors[0], residual, *vectors[1:])
    total = x + vectors[0] + residual
    truth = [functional.layer_norm(total, (8,), *vectors[1:], 1e-6), total][: 1 + keep_sums]
    found = norm_rows(*leaves, 1e-6, "layer_norm", True, keep_sums)[: 1 + keep_sums]
    given = list(torch.randn(1 + keep_sums, 6, 8))
    for one, other in zip(
        torch.autograd.grad(found, leaves, given), torch.autograd.grad(truth, leaves, given), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
class TestOnHopper:
    @pytest.mark.parametrize("m", [1, 7, 333])
    def test_rows_of_any_width(self, m, dtype, kind):
        for d in (8, 72, 256, 264, 512, 520, 768, 1000, 1024, 1032, 1536, 2048, 3000, 4096, 5120, 6152, 8192):
            assert rows_unsupported_reason(d, dtype, torch.device("cuda")) is None
            check(m, d, dtype, kind, "cuda")
        check(m, 1001, dtype, kind, "cuda")  # by plain operations

    def test_infinities_nan_and_zeros(self, dtype, kind):
        x = torch.randn(4, 64, device="cuda", dtype=dtype)
        x[0, 3], x[1, 5], x[2] = torch.inf, torch.nan, 0
        y, _, values, scales = norm_rows(x, None, None, None, None, 1e-6, kind, True, False, True)
        expected = quantize(y, "fp8")
        assert torch.equal(values.float(), expected.values.float()) or torch.equal(
            values.float().nan_to_num(7), expected.values.float().nan_to_num(7)
        )
        assert torch.equal(scales, expected.scales)

    def test_graph_replay_equals_eager(self, dtype, kind):
        """One norm reads what the one before wrote, also on operands that were refilled after the recording."""
        x, residual = torch.randn(2, 1000, 768, device="cuda", dtype=dtype)

        def two():
            first, sums, *_ = norm_rows(x, None, residual, None, None, 1e-6, kind, True, True)
            return norm_rows(first, None, sums, None, None, 1e-6, kind)[0]

        two()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = two()
        x.normal_()
        graph.replay()
        assert torch.equal(recorded, two())
