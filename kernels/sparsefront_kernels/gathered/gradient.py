"""Gradients of the gathered products: of X, the bias and the residual. The weight is stored, not trained.

dX = dZ · W with dZ = dY · activation'(Z) and Z = X · Wᵀ + bias. The weight is laid out for the product and not for its
transpose, so W is rebuilt dense in every backward pass and multiplied by cuBLAS: right for every pattern, and as slow as a dense
layer's backward pass and a write of W. Where an activation is fused, Z is computed anew rather than kept, from all of X: an
infinity at a pruned input then reaches dX.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels.common.epilogue import accumulation_dtype


def register_gradient(
    name: str, *, stored: tuple[str, ...], dense: Callable[..., Tensor], numbers: tuple[str, ...] = ()
) -> None:
    """Let autograd differentiate an op y = activation(x · Wᵀ + bias) + residual.

    Args:
        name: of an op of `sparsefront` with the arguments `x`, `bias`, `residual`, `n`, `k`, `activation`, `x_feature_major`
            and `y_feature_major`.
        stored: names of those of its arguments that W is rebuilt from.
        dense: of these, `n`, `k` and `numbers` by name → W [N, K], in operations that a compiled graph can hold.
        numbers: names of others of its arguments, which are no tensors.
    Raises:
        ValueError: at a call, where a gradient of a stored tensor is asked for.
    """
    schema = getattr(torch.ops.sparsefront, name).default._schema
    arguments = tuple(argument.name for argument in schema.arguments)

    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        named = dict(zip(arguments, inputs, strict=True))
        for argument, needed in zip(arguments, ctx.needs_input_grad):  # PyTorch adds one of its own
            if needed and argument in stored:
                raise ValueError(f"{name}: the weight is stored, not trained, so {argument} has no gradient")
        tensors = {argument: named[argument] for argument in stored}
        if named["activation"] != "none":  # Z is computed anew
            tensors |= {"x": named["x"]} | ({} if named["bias"] is None else {"bias": named["bias"]})
        ctx.save_for_backward(*tensors.values())
        ctx.saved_names = tuple(tensors)
        ctx.plain = {argument: value for argument, value in named.items() if not isinstance(value, Tensor)}
        ctx.bias_dtype = None if named["bias"] is None else named["bias"].dtype

    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved, plain = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True)), ctx.plain
        wanted = dict(zip(arguments, ctx.needs_input_grad))
        by_name = {argument: saved[argument] for argument in stored} | {
            name: plain[name] for name in ("n", "k", *numbers)
        }
        weight = dense(**by_name)
        rows = dy.t() if plain["y_feature_major"] else dy  # [M, N]
        gradients: dict[str, Tensor] = {"residual": dy} if wanted["residual"] else {}
        if plain["activation"] != "none":
            x = saved["x"].t() if plain["x_feature_major"] else saved["x"]
            rows = activation_gradient(rows, x, weight, saved.get("bias"), plain["activation"])
        if wanted["bias"]:
            gradients["bias"] = rows.sum(dim=0, dtype=accumulation_dtype(rows.dtype)).to(ctx.bias_dtype)
        if wanted["x"]:
            gradients["x"] = weight.t() @ rows.t() if plain["x_feature_major"] else rows @ weight
        return tuple(gradients.get(argument) for argument in arguments)

    torch.library.register_autograd(f"sparsefront::{name}", backward, setup_context=setup_context)


def activation_gradient(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """dZ [M, N] = dY · activation'(X · Wᵀ + bias) in dy's dtype.

    Args:
        dy: [M, N].
        x: [M, K].
        weight: [N, K].
        bias: [N] or None.
        activation: a name of `common.epilogue.ACTIVATIONS`, not "none".
    """
    z = x @ weight.t()
    precision = accumulation_dtype(dy.dtype)
    z = z.to(precision) if bias is None else z.to(precision) + bias.to(precision)
    wide = dy.to(precision)
    if activation == "relu":
        return torch.where(z > 0, wide, 0.0).to(dy.dtype)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(wide, z, approximate=approximate).to(dy.dtype)
