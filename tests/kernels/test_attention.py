"""Attention of sequences stored end to end: the op and its kernel against each sequence alone."""

import pytest
import torch
from sparsefront_kernels.attention import attend_unpadded, attend_unpadded_reference
from sparsefront_kernels.attention.triton_unpadded import launch_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = {
    "one token": [1],
    "an empty one between": [3, 0, 70],
    "only empty ones": [0, 0],
    "several blocks": [130, 1, 64, 65, 200],
}


def draw(
    lengths: list[int], rest: int, heads: int, d: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """q, k, v as slices of one product, offsets, bias and columns of tokens that have gaps between them."""
    tokens = sum(lengths) + rest
    joined = torch.randn(tokens, 3 * heads * d, device=device).to(dtype)
    q, k, v = (part.unflatten(1, (heads, d)) for part in joined.chunk(3, 1))
    offsets = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    columns = torch.cat([torch.randperm(2 * length).sort().values[::2] for length in [*lengths, rest]]).int()
    reach = 2 * max([*lengths, 1])
    bias = torch.randn(heads, 2 * reach + 1, device=device).to(dtype)
    return q, k, v, offsets, bias, columns.to(device)


def attend_one_by_one(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, bias: Tensor | None, columns: Tensor) -> Tensor:
    """In float64, through PyTorch's attention."""
    out = v.double().clone()
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if start == end:
            continue
        parts = [part[start:end].double().transpose(0, 1)[None] for part in (q, k, v)]
        mask = None
        if bias is not None:
            distance = columns[start:end].long()[None, :] - columns[start:end].long()[:, None]
            mask = bias.double()[:, distance + bias.shape[1] // 2][None]
        out[start:end] = scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3)[0].transpose(0, 1)
    return out


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    ("heads", "d", "dtype"), [(2, 8, torch.float32), (1, 64, torch.float16), (3, 24, torch.bfloat16)]
)
def test_attention_of_each_sequence(heads, d, dtype, lengths, has_bias, device):
    q, k, v, offsets, bias, columns = draw(lengths, 5, heads, d, dtype, device)
    operands = (q, k, v, offsets, 0.3, *((bias, columns) if has_bias else (None, None)))
    expected = attend_one_by_one(q, k, v, offsets, bias if has_bias else None, columns)
    results = [attend_unpadded(*operands)]
    if device.type == "cuda" or dtype != torch.bfloat16:  # the interpreter has no products of bfloat16
        results.append(torch.full_like(results[0], torch.nan))
        launch_attention(*operands, results[1])
    for result in results:
        assert result.is_contiguous() and result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[dtype] * 3)


@pytest.mark.gpu
@pytest.mark.parametrize("launch", [(64, 32, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 128, 8, 2)])
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_of_a_large_batch(dtype, has_bias, launch):
    device, lengths = torch.device("cuda"), torch.randint(1, 513, (64,)).tolist()
    q, k, v, offsets, bias, columns = draw(lengths, 37, 12, 64, dtype, device)
    operands = (q, k, v, offsets, 0.125, *((bias, columns) if has_bias else (None, None)))
    expected = attend_unpadded_reference(
        *(part.float() if part is not None and part.is_floating_point() else part for part in operands[:4]),
        0.125,
        *(None if part is None else part for part in operands[5:]),
    )
    out = torch.full_like(q, torch.nan, memory_format=torch.contiguous_format)
    launch_attention(*operands, out, launch=launch)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=3 * TOLERANCE[dtype])


def test_attention_is_an_op(device):
    q, k, v, offsets, bias, columns = draw([3, 2], 1, 2, 8, torch.float32, device)
    for operands in ((q, k, v, offsets, 0.3), (q, k, v, offsets, 0.3, bias, columns)):
        torch.library.opcheck(attend_unpadded.overload, operands, test_utils=("test_schema", "test_faketensor"))
    for wrong, message in (
        ((q[:, :1], k, v, offsets, 0.3), "of one dtype, with contiguous heads, not"),
        ((q, k, v, offsets.long(), 0.3), r"offsets must be int32 \[sequences \+ 1\], not torch.int64 \[3\]"),
        ((q, k, v, offsets, 0.3, bias), r"bias must be \[2, 2 \* reach \+ 1\], with columns"),
        ((q, k, v, offsets, 0.3, bias, columns[1:]), r"columns must be int32 \[6\], not torch.int32 \[5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            attend_unpadded(*wrong)
