"""The activations of common/epilogue.py in Triton, in float32."""

import triton
import triton.language as tl


@triton.jit
def activated(v, NAME: tl.constexpr):
    """v in float32; NAME: a name of `common.epilogue.ACTIVATIONS`."""
    if NAME == "relu":
        v = tl.where(v < 0.0, 0.0, v)  # NaN stays NaN, as in torch.relu
    elif NAME == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        v = v / (
            1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v))
        )  # 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u))
    return v
