"""Attention on activations of any layout, with lists of computed features: the op and its kernel against float64."""

import pytest
import torch
from sparsefront_kernels.attention import attend
from sparsefront_kernels.attention.encoder import unsupported_reason
from sparsefront_kernels.attention.triton_encoder import is_feature_major, launch_attention
from torch import Tensor

# values with their bias reach 8, where they and the sums are rounded by half a unit in the last place each
TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
MASKS = ("none", "bool keys", "bool pairs", "keys", "pairs")
LAYOUTS = {
    "rows": (False, False),
    "columns": (True, True),
    "rows to columns": (False, True),
    "columns to rows": (True, False),
}
# batch, length, heads, features of a head; of 8 x 77 sequences begin between groups of eight tokens
SHAPES = [
    (1, 1, 2, 32),
    (3, 1, 1, 8),
    (8, 77, 1, 64),
    (3, 77, 2, 32),
    (1, 197, 1, 64),
    (1, 272, 1, 32),
    (1, 384, 1, 64),
]
SHAPES += [(1, 512, 1, 32), (32, 13, 1, 24)]


def draw_mask(kind: str, batch: int, length: int, heads: int, dtype: torch.dtype) -> Tensor | None:
    """Masks under which the first query, or the first sequence, attends to nothing or only to padding."""
    if kind == "none":
        return None
    mask = torch.rand(batch, 1, length if "pairs" in kind else 1, length) < 0.7
    mask[0, :, 0] = False
    if kind.startswith("bool"):
        return mask
    lowest = torch.finfo(dtype).min if kind == "keys" else -torch.inf
    scores = torch.randn(1, heads, length, length) if kind == "pairs" else torch.zeros(())
    return torch.where(mask, scores, lowest).to(dtype)


def draw(shape: tuple[int, ...], layout: str, mask: str, dtype: torch.dtype, *, pruned: bool, device: torch.device):
    """Operands of the op; without pruned features q, k and v are slices of one product, else one tensor with a list."""
    batch, length, heads, width = *shape[:3], shape[2] * shape[3]
    count, features = 3 * width, None
    if pruned:
        computed = torch.rand(3 * width) < 0.6
        count = max(8, int(computed.sum()))
        features = torch.full((3 * width,), -1, dtype=torch.int32)
        features[computed] = torch.randperm(int(computed.sum())).int()
        features = features.view(3, width).to(device)
    y = torch.randn(batch * length, count).to(device, dtype)
    y = (y.t().contiguous().t() if LAYOUTS[layout][0] else y).view(batch, length, count)
    q, k, v = (y, y, y) if pruned else y.chunk(3, 2)
    drawn = draw_mask(mask, batch, length, heads, dtype)
    biases = [torch.randn(width).to(device), torch.randn(width).to(device, dtype)] if pruned else [None, None]
    return q, k, v, features, heads, 1.2 * shape[3] ** -0.5, None if drawn is None else drawn.to(device), *biases


def attend_in_float64(q, k, v, features, heads, scale, mask, q_bias, v_bias) -> Tensor:
    """Step by step; a query without keys gets zeros."""
    parts = [q.double(), k.double(), v.double()]
    if features is not None:
        padded = [torch.cat([part, torch.zeros_like(part[..., :1])], -1) for part in parts]
        parts = [part[..., index.long()] for part, index in zip(padded, features, strict=True)]
        parts = [parts[0] + q_bias.double(), parts[1], parts[2] + v_bias.double()]
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts)
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2).flatten(2)


def check(
    shape, layout: str, mask: str, dtype: torch.dtype, *, pruned: bool, device: torch.device, launch=None
) -> None:
    operands = draw(shape, layout, mask, dtype, pruned=pruned, device=device)
    expected, feature_major = attend_in_float64(*operands), LAYOUTS[layout][1]
    results = [attend(*operands, feature_major)]
    if device.type == "cuda" or dtype != torch.bfloat16:  # the interpreter has no products of bfloat16
        results.append(torch.full_like(results[0], torch.nan))  # of the same strides
        launch_attention(*operands, results[1], launch=launch)
    for result in results:
        assert result.dtype == dtype and (
            is_feature_major(result.flatten(0, 1)) is feature_major or shape[0] * shape[1] == 1
        )
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_of_any_shape(shape, layout, device):
    number = list(LAYOUTS).index(layout)
    pruned, dtype = number % 2 == 0, (torch.float16, torch.float32)[number // 2]
    check(shape, layout, MASKS[(shape[1] + number) % 5], dtype, pruned=pruned, device=device)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_under_masks(mask, dtype, device):
    for shape in ((2, 9, 2, 16), (8, 70, 1, 16)):
        check(shape, "columns", mask, dtype, pruned=True, device=device, launch=(64, 32, 4, 1))


def test_attention_is_an_op(device):
    operands = draw((2, 8, 2, 8), "columns", "pairs", torch.float32, pruned=True, device=device)
    torch.library.opcheck(attend.overload, operands, test_utils=("test_schema", "test_faketensor"))
    q, k, v, features, heads, scale, mask, *_ = operands
    for wrong, message in (
        ((q, k[:, 1:], v, features, heads, scale), r"q, k and v must be \[B, L, F\] of one dtype, not"),
        ((q, k[..., 1:], v, None, heads, scale), r"k and v must be \[2, 8, \d+\] as q, not"),
        (
            (q, k, v, features.long(), heads, scale),
            r"features must be int32 \[3, heads \* d\], not torch.int64 \[3, 16\]",
        ),
        ((q, k, v, features, heads, -1.0), r"scale=-1.0 must be positive"),
        ((q, k, v, features, 3, scale), "3 heads do not divide 16 features"),
        ((q, k, v, features, heads, scale, mask.half()), "mask must be bool or torch.float32, not torch.float16"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(*wrong)
    with pytest.raises(ValueError, match="of one layout"):
        launch_attention(q, k.contiguous(), v, features, heads, scale, mask, None, None, torch.empty(2, 8, 16))


def test_attention_has_gradients(device):
    operands = draw((2, 8, 2, 8), "columns", "none", torch.float32, pruned=True, device=device)
    rest, gradients = operands[3:], []
    for function in (attend, attend_in_float64):
        parts = [part.detach().clone().requires_grad_() for part in operands[:3]]
        function(*parts, *rest).square().sum().backward()
        gradients.append([part.grad for part in parts])
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_attention_names_unsupported_heads():
    cuda = torch.device("cuda")
    assert unsupported_reason(torch.float16, 64, torch.device("cpu")) == "runs on CUDA devices"
    assert unsupported_reason(torch.float32, 64, cuda) == "takes float16 and bfloat16, not float32"
    assert unsupported_reason(torch.float16, 160, cuda) == "takes heads of at most 128 features, not 160"
    assert unsupported_reason(torch.float16, 64, cuda) is None


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("launch", [(64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)], ids=str)
@pytest.mark.parametrize("shape", [(32, 384, 4, 64), (16, 197, 4, 64), (8, 272, 3, 64), (3, 77, 2, 32)], ids=str)
def test_attention_of_large_batches(shape, launch, layout):
    number = list(LAYOUTS).index(layout)
    dtype, device = (torch.float16, torch.bfloat16)[number // 2], torch.device("cuda")
    for mask in ("none", MASKS[number + 1]):
        check(shape, layout, mask, dtype, pruned=number % 2 == 1, device=device, launch=launch)
