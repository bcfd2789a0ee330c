"""Attention within sequences of equal length, on activations of any layout and with lists of features, as one PyTorch op."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sparsefront_kernels import operands
from sparsefront_kernels.custom_op import custom_op

TRITON_DTYPES = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 128  # features


def unsupported_reason(dtype: torch.dtype, d: int, device: torch.device) -> str | None:
    """Why no kernel computes `attend` for heads of d features on this device, or None; plain PyTorch runs it elsewhere."""
    if device.type != "cuda":
        return "runs on CUDA devices"
    if not operands.TRITON_IS_INSTALLED:
        return "Triton is not installed"
    if dtype not in TRITON_DTYPES:
        return f"takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    return None if d <= LARGEST_HEAD else f"takes heads of at most {LARGEST_HEAD} features, not {d}"


def attend_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor | None,
    heads: int,
    scale: float,
    mask: Tensor | None = None,
    q_bias: Tensor | None = None,
    v_bias: Tensor | None = None,
) -> Tensor:
    """The op `attend` in PyTorch, in the dtype of its operands, row-major."""
    parts = [q, k, v]
    if features is not None:
        parts = [select_features(part, index) for part, index in zip(parts, features, strict=True)]
    for place, bias in ((0, q_bias), (2, v_bias)):
        parts[place] = parts[place] if bias is None else parts[place] + bias.to(q.dtype)
    by_head = [part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts]
    return scaled_dot_product_attention(*by_head, mask, scale=scale).transpose(1, 2).flatten(2)


def select_features(x: Tensor, index: Tensor) -> Tensor:
    """[..., F] at int32 index [N]: [..., N], zeros where it is -1."""
    return (
        torch.where(index >= 0, x[..., index.clamp(min=0)], 0)
        if x.shape[-1]
        else x.new_zeros(*x.shape[:-1], len(index))
    )


@custom_op(
    "attend",
    "(Tensor q, Tensor k, Tensor v, Tensor? features, int heads, float scale, Tensor? mask=None, Tensor? q_bias=None, "
    "Tensor? v_bias=None, bool feature_major=False) -> Tensor",
)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor | None,
    heads: int,
    scale: float,
    mask: Tensor | None = None,
    q_bias: Tensor | None = None,
    v_bias: Tensor | None = None,
    feature_major: bool = False,
) -> Tensor:
    """softmax(scale * (Q + q_bias) Kᵀ + mask) V + v_bias within each sequence, with sums in float32.

    A bias of K would add the same to all scores of a query, so that it changes nothing. In feature-major operands with L no
    multiple of 8, an infinity or NaN of V may reach the sequence before or after its own.

    Args:
        q, k, v: [B, L, F] of one dtype and layout, row-major or feature-major ([F, B * L] transposed); they may be one tensor.
        features: int32 [3, heads * d]: the column of each feature of Q, K and V in q, k and v, or -1 for zeros; None: the
            columns in order.
        scale: positive.
        mask: bool (True = attend) or of q's dtype (added to the scores), broadcastable to [B, heads, L, L]; or None. A query
            without keys gets zeros.
        q_bias, v_bias: [heads * d] of any float dtype, contiguous, or None.
        feature_major: the layout of the result.
    Returns:
        [B, L, heads * d].
    Raises:
        ValueError: incompatible operands.
    """
    width = q.shape[-1] if features is None else features.shape[-1]
    _check(q, k, v, features, heads, width, mask)
    if not scale > 0:
        raise ValueError(f"scale={scale} must be positive")
    batch, length = q.shape[:2]
    tokens = batch * length
    if unsupported_reason(q.dtype, width // heads, q.device) or q.numel() == 0:
        y = attend_reference(q, k, v, features, heads, scale, mask, q_bias, v_bias).reshape(tokens, width)
        return (y.t().contiguous().t() if feature_major else y.contiguous()).view(batch, length, width)
    from sparsefront_kernels.attention.triton_encoder import launch_attention

    out = _empty(q, width, feature_major)
    with torch.cuda.device_of(q):
        launch_attention(*_of_one_layout(q, k, v), features, heads, scale, mask, q_bias, v_bias, out)
    return out


def _of_one_layout(*parts: Tensor) -> list[Tensor]:
    """The parts, each a view of a matrix of one layout; copies if they are not."""
    rows = [part.reshape(-1, part.shape[2]) for part in parts]
    if all(part.stride(1) == 1 for part in rows) or all(part.stride(0) == 1 for part in rows):
        return [row.view(part.shape) for row, part in zip(rows, parts, strict=True)]
    return [part.contiguous() for part in parts]


def _check(
    q: Tensor, k: Tensor, v: Tensor, features: Tensor | None, heads: int, width: int, mask: Tensor | None
) -> None:
    if q.dim() != 3 or any(part.shape[:2] != q.shape[:2] or part.dtype != q.dtype for part in (k, v)):
        shapes = ", ".join(f"{part.dtype} {list(part.shape)}" for part in (q, k, v))
        raise ValueError(f"q, k and v must be [B, L, F] of one dtype, not {shapes}")
    if features is None and not q.shape == k.shape == v.shape:
        raise ValueError(f"k and v must be {list(q.shape)} as q, not {list(k.shape)} and {list(v.shape)}")
    if features is not None and (features.dtype != torch.int32 or features.dim() != 2 or len(features) != 3):
        raise ValueError(f"features must be int32 [3, heads * d], not {features.dtype} {list(features.shape)}")
    if heads < 1 or width % heads:
        raise ValueError(f"{heads} heads do not divide {width} features")
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        raise ValueError(f"mask must be bool or {q.dtype}, not {mask.dtype}")


def _empty(q: Tensor, width: int, feature_major: bool) -> Tensor:
    batch, length = q.shape[:2]
    if feature_major:
        return q.new_empty(width, batch * length).t().view(batch, length, width)
    return q.new_empty(batch, length, width)


@attend.register_fake
def _(q, k, v, features, heads, scale, mask=None, q_bias=None, v_bias=None, feature_major=False):
    return _empty(q, q.shape[-1] if features is None else features.shape[-1], feature_major)


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    tensors = [inputs[place] for place in (0, 1, 2, 3, 6, 7, 8)]
    ctx.save_for_backward(*tensors)
    ctx.heads, ctx.scale = inputs[4], inputs[5]


def _gradients(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v by recomputing with the reference; mask and biases are constants."""
    q, k, v, features, mask, q_bias, v_bias = ctx.saved_tensors
    parts = [part.detach().requires_grad_() for part in (q, k, v)]
    with torch.enable_grad():
        y = attend_reference(*parts, features, ctx.heads, ctx.scale, mask, q_bias, v_bias)
    return *torch.autograd.grad(y, parts, dy), *([None] * 7)


attend.register_autograd(_gradients, setup_context=_keep)
