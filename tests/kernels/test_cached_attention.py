"""Attention of one new token per row to a static cache: the op and its kernel against PyTorch's own operations in float64."""

from typing import Any

import pytest
import torch
from sparsefront_kernels.attention import attend_cached
from sparsefront_kernels.attention.triton_cached import count_parts, launch_cached_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SCALE = 0.2


def draw(
    batch: int,
    key_heads: int,
    group: int,
    length: int,
    d: int,
    dtype: torch.dtype,
    device: Any,
    rotary: int | None = None,
) -> dict[str, Any]:
    """Operands of the op: q, k and v as slices of one product, a cache that is full to its last place but one."""
    heads, rotary = key_heads * group, d if rotary is None else rotary
    joined = torch.randn(batch, (heads + 2 * key_heads) * d, device=device).to(dtype).unflatten(1, (-1, d))
    q, k, v = joined.split([heads, key_heads, key_heads], 1)
    keys, values = (torch.randn(batch, key_heads, length, d, device=device).to(dtype) for _ in range(2))
    keys[:, :, -1:] = values[:, :, -1:] = torch.nan  # has to be written
    angles = torch.rand(batch, rotary // 2, device=device).repeat(1, 2) * 6
    turns = {} if rotary == 0 else {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}
    mask = torch.arange(length, device=device) >= torch.arange(batch, device=device)[:, None] % length  # left-padded
    position = torch.tensor([length - 1], dtype=torch.int32 if length % 2 else torch.int64, device=device)
    cache = {"keys": keys, "values": values, "position": position}
    return {"q": q, "k": k, "v": v, **cache, "scale": SCALE, "mask": mask, **turns}


def turned(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """Pairs of features as complex numbers, times cos + i sin."""
    if cos is None or sin is None:
        return x
    half = cos.shape[1] // 2
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    pairs = pairs * torch.complex(cos, sin).to(torch.complex128)[:, None, :half]
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * half :]], -1)


def expected_of(operands: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Output, keys and values in float64, through PyTorch's attention."""
    wide = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in operands.items()
    }
    keys, values, position = wide["keys"].clone(), wide["values"].clone(), int(wide["position"])
    cos, sin = wide.get("cos"), wide.get("sin")
    keys[:, :, position], values[:, :, position] = turned(wide["k"], cos, sin), wide["v"]
    q, (seen_keys, seen_values) = turned(wide["q"], cos, sin), (part[:, :, : position + 1] for part in (keys, values))
    group = q.shape[1] // keys.shape[1]
    repeated = [part.repeat_interleave(group, 1) for part in (seen_keys, seen_values)]
    mask = None if wide["mask"] is None else wide["mask"][:, None, None, : position + 1]
    out = scaled_dot_product_attention(q[:, :, None], *repeated, attn_mask=mask, scale=SCALE)
    return out[:, :, 0], keys, values


def run_kernel(operands: dict[str, Any], **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Like the op, by the kernel alone, which runs in Triton's interpreter on a CPU."""
    q, keys, values = operands["q"], operands["keys"].clone(), operands["values"].clone()
    out = torch.full(q.shape, torch.nan, dtype=q.dtype, device=q.device)
    rest = [operands.get(name) for name in ("mask", "cos", "sin")]
    first = (q, operands["k"], operands["v"], keys, values, operands["position"], SCALE)
    launch_cached_attention(*first, *rest, out, **how)
    return out, keys, values


def assert_close(results: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for result, truth in zip(results, expected, strict=True):
        assert result.dtype == dtype and result.is_contiguous()
        torch.testing.assert_close(result.double(), truth, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("batch", "key_heads", "group", "length", "d", "rotary", "dtype", "parts"),
    [
        (1, 2, 1, 1, 64, 64, torch.float32, 1),  # an empty cache
        (4, 2, 4, 17, 64, 64, torch.float32, 1),
        (16, 1, 8, 17, 128, 128, torch.float16, 3),  # with parts that have no key
        (4, 2, 1, 512, 128, 128, torch.float16, 4),
        (1, 1, 4, 512, 64, 64, torch.float16, 1),
        (1, 1, 8, 2048, 128, 128, torch.float32, 5),
        (2, 2, 3, 70, 24, 8, torch.float32, 2),  # a part of each head rotates
        (2, 2, 1, 70, 80, 0, torch.float32, 2),  # nothing does
    ],
)
def test_cached_attention_by_shape(batch, key_heads, group, length, d, rotary, dtype, parts, device):
    torch.manual_seed(0)
    operands = draw(batch, key_heads, group, length, d, dtype, device, rotary)
    expected = expected_of(operands)
    assert_close(run_kernel(operands, parts=parts), expected, dtype)
    own = {name: value.clone() if name in ("keys", "values") else value for name, value in operands.items()}
    assert_close((attend_cached(**own), own["keys"], own["values"]), expected, dtype)


@pytest.mark.parametrize("parts", [1, 3])
def test_cached_attention_by_mask(parts, device):
    """Bool or added, for all rows or each, at a position before the end; one row attends to nothing."""
    torch.manual_seed(0)
    operands = draw(3, 2, 2, 90, 16, torch.float32, device) | {"position": torch.tensor([40], device=device)}
    operands["keys"][:, :, 41:] = operands["values"][:, :, 41:] = torch.nan  # nobody may read these
    added = torch.where(operands["mask"], torch.randn(3, 90, device=device), -torch.inf)
    for mask in (None, operands["mask"], operands["mask"][:1], added, added.half()):
        results = run_kernel(operands | {"mask": None if mask is None else mask.expand(3, -1)}, parts=parts)
        assert_close(results[:1], expected_of(operands | {"mask": mask})[:1], torch.float32)
    operands["mask"][1] = False
    for out in (run_kernel(operands, parts=parts)[0], attend_cached(**clean(operands))):
        assert not out[1].any() and out[0].isfinite().all()


@pytest.mark.parametrize(("parts", "position"), [(1, 90), (3, 90), (1, -1)])
def test_position_outside_of_the_cache(parts, position, device):
    """Nothing is written, also not into the next head's place, and the output shows it."""
    operands = clean(
        draw(3, 2, 2, 90, 16, torch.float32, device) | {"position": torch.tensor([position], device=device)}
    )
    out, keys, values = run_kernel(operands, parts=parts)
    assert out.isnan().all() and torch.equal(keys, operands["keys"]) and torch.equal(values, operands["values"])


def clean(operands: dict[str, Any]) -> dict[str, Any]:
    """Without NaN, which the reference multiplies by a weight of zero."""
    return operands | {name: operands[name].nan_to_num() for name in ("keys", "values")}


def test_parts_of_a_cache():
    assert count_parts(32, 320, 132) == 2 and count_parts(32, 2048, 132) == 8
    assert count_parts(512, 2048, 132) == 1 and count_parts(1, 64, 132) == 1 and count_parts(1, 10**6, 132) == 32


def test_cached_attention_is_an_op(device):
    operands = draw(2, 2, 2, 9, 8, torch.float32, device)
    operands |= {"keys": torch.randn(2, 2, 9, 8, device=device), "values": torch.randn(2, 2, 9, 8, device=device)}
    torch.library.opcheck(
        attend_cached.overload, (), operands, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static")
    )
    for wrong, message in (
        ({"k": operands["k"].half()}, "k and v .B, key heads, d., with contiguous heads, not"),
        ({"q": operands["q"][:, :3]}, r"q must be \[2, a multiple of 2, 8\], not \[2, 3, 8\]"),
        ({"keys": operands["keys"].half()}, "keys must be contiguous torch.float32, not torch.float16"),
        ({"values": operands["values"][:, :, :5]}, r"values must be \[2, 2, length, 8\], not \[2, 2, 5, 8\]"),
        ({"position": torch.tensor(3)}, r"position must be an integer \[1\], not torch.int64 \[\]"),
        ({"mask": operands["mask"][:, 1:]}, r"mask must be \[2 or 1, 9\], not \[2, 8\]"),
        ({"sin": None}, "cos and sin are both given, or neither"),
        ({"cos": operands["cos"][:, 1:]}, "cos and sin must be .2 or 1, an even number up to 8., not"),
    ):
        with pytest.raises(ValueError, match=message):
            attend_cached(**operands | wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 17, 512, 2048])
@pytest.mark.parametrize("group", [1, 4, 8])
def test_cached_attention_on_gpu(group, length, dtype):
    """Every batch and width of heads; in a graph that is recorded at one position and replayed at another."""
    for batch in (1, 4, 16):
        for d in (64, 128):
            operands = draw(batch, 8, group, length, d, dtype, "cuda")
            expected, keys, values = expected_of(operands), operands["keys"].clone(), operands["values"].clone()
            own, position = operands | {"keys": keys, "values": values}, operands["position"].clone()
            attend_cached(**own)  # compiles
            operands["position"].zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attend_cached(**own)
            operands["position"].copy_(position)
            keys.copy_(operands["keys"])
            values.copy_(operands["values"])
            graph.replay()
            assert_close((out, keys, values), expected, dtype)
