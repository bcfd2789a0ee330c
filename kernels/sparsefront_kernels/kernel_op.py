"""One PyTorch op per kernel, `torch.ops.sparsefront.<kernel>`, derived from the dataclass of its packed weight.

A kernel's file defines that dataclass, a function that packs a format into it, and a function that runs the kernel.
`kernel_entry` derives the rest: the op's schema, its fake implementation, its gradient and the registry entry. The op is a
single node in eager mode, compiled graphs and CUDA graphs.

Gradients exist for X, the bias and the residual: dX = dZ · W with dZ = dY · activation'(Z) and Z = X · Wᵀ + bias. The weight
is packed for W and not for its transpose, so each backward pass rebuilds W dense and multiplies with cuBLAS: correct for
every pattern, at the cost of the dense backward plus a write of W. With a fused activation, Z is recomputed from all of X
instead of saved: an infinity at a pruned input then reaches dX.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, get_type_hints

import torch
from torch import Tensor

from sparsefront_kernels.custom_op import CustomOp
from sparsefront_kernels.epilogue import accumulation_dtype
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.operands import Epilogue, bias_for_kernel, check_epilogue, check_operands, empty_output
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR

# type of a field of a packed weight -> type of the op's argument
SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    int: "SymInt",
    bool: "bool",
    float: "float",
    str: "str",
    tuple[int, ...]: "SymInt[]",
}
EPILOGUE = {"residual": "Tensor?", "activation": "str"}
LAYOUT = {"x_feature_major": "bool", "y_feature_major": "bool"}


def kernel_entry(
    name: str,
    family: str,
    *,
    weight: type,
    multiply: Callable[..., None] | None = None,
    run: Callable[..., Tensor] | None = None,
    dense: Callable[[Any], Tensor] | None = None,
    transposed_y: bool = False,
    output: Callable[[Tensor, int, bool, bool], Tensor] | None = None,
    most_rows: Callable[[Any], int] | None = None,
    **settings: Any,
) -> KernelEntry:
    """Create the registry entry of a GPU kernel, with its op.

    Args:
        name, family: as in `KernelEntry`.
        weight: the dataclass returned by `pack`: has `n` and `k` (outputs and inputs of the weight) and fields of
            `SCHEMA_TYPES`. The op takes its fields one by one. X has the dtype and device of the first tensor.
        multiply: (x, y, packed weight, Epilogue, x_feature_major, y_feature_major) writes all of Y, which has elements, on the
            current stream of x's device, which is current. The operands were checked. x has any strides.
        run: instead of `multiply`, for a kernel that allocates Y: (x, packed weight, bias or None) -> y. Keywords: `residual` and
            `activation` if it fuses the epilogue; `x_feature_major` and `y_feature_major` if it supports several layouts. It
            checks its operands.
        dense: packed weight -> W [N, K] in traceable operations. None: the op has no gradient.
        transposed_y: whether the kernel writes [N, M] in every layout, so that a row-major Y is a transposed view.
        output: (x, n, x_feature_major, y_feature_major) -> an empty Y, for a kernel with other output strides.
        most_rows: packed weight -> most rows of X that one call of the kernel takes; None: any number. The op multiplies more in
            parts, at the cost of reading the weight for each: a layer whose kernel was chosen for few rows runs at any number.
        settings: the other arguments of `KernelEntry`.
    """
    layouts, fused = settings.get("layouts", ("row_major",)), settings.get("fuses_epilogue", False)
    op = _Op(name, weight, multiply, run, transposed_y, output, most_rows, layouts=layouts, fused=fused)
    if dense is not None:
        op.register_gradient(dense)
    product = partial(op, layout=layouts[0]) if len(layouts) == 1 else op
    return KernelEntry(name=name, family=family, product=product, requires_cuda=True, **settings)


class _Op:
    """`torch.ops.sparsefront.<name>`, and the conversion of a packed weight to its arguments and back."""

    def __init__(
        self,
        name: str,
        weight: type,
        multiply: Callable[..., None] | None,
        run: Callable[..., Tensor] | None,
        transposed_y: bool,
        output: Callable[[Tensor, int, bool, bool], Tensor] | None,
        most_rows: Callable[[Any], int] | None,
        *,
        layouts: tuple[str, ...],
        fused: bool,
    ) -> None:
        self.name, self.weight, self.fused, self.transposed_y = name, weight, fused, transposed_y
        self.multiply, self.run, self.output, self.most_rows = multiply, run, output, most_rows
        hints = get_type_hints(weight)
        self.parts = tuple(field.name for field in fields(weight))
        kinds = {"x": "Tensor", **{part: SCHEMA_TYPES[hints[part]] for part in self.parts}, "bias": "Tensor?"}
        kinds |= (EPILOGUE if fused else {}) | LAYOUT
        self.arguments = tuple(kinds)
        self.keywords = (*(EPILOGUE if fused else ()), *(LAYOUT if len(layouts) > 1 else ()))
        self.lists = tuple(part for part in self.parts if kinds[part] == "SymInt[]")
        self.values = next(part for part in self.parts if kinds[part] == "Tensor")
        schema = f"({', '.join(f'{kind} {argument}' for argument, kind in kinds.items())}) -> Tensor"
        self.op = CustomOp(name, self._execute, schema)
        self.op.register_fake(self._fake)

    def __call__(
        self,
        x: Tensor,
        packed: Any,
        bias: Tensor | None = None,
        *,
        layout: str,
        activation: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        """`product` of an entry: x and y are in the layout's order."""
        parts = [getattr(packed, part) for part in self.parts]
        epilogue = [residual, activation] if self.fused else []
        return self.op.overload(x, *parts, bias, *epilogue, layout in X_FEATURE_MAJOR, layout in Y_FEATURE_MAJOR)

    def register_gradient(self, dense: Callable[[Any], Tensor]) -> None:
        """Register autograd for the op; requesting a gradient of the weight raises ValueError at the call."""

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            by_name = dict(zip(self.arguments, inputs, strict=True))
            for argument, needed in zip(self.arguments, ctx.needs_input_grad):  # PyTorch appends one entry
                if needed and argument in self.parts:
                    raise ValueError(f"{self.name}: the weight is stored, not trained, so {argument} has no gradient")
            saved = {part: by_name[part] for part in self.parts if isinstance(by_name[part], Tensor)}
            if by_name.get("activation", "none") != "none":  # Z is recomputed
                saved |= {"x": by_name["x"]} | ({} if by_name["bias"] is None else {"bias": by_name["bias"]})
            ctx.save_for_backward(*saved.values())
            ctx.saved_names = tuple(saved)
            ctx.plain = {argument: value for argument, value in by_name.items() if not isinstance(value, Tensor)}
            ctx.bias_dtype = None if by_name["bias"] is None else by_name["bias"].dtype

        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
            saved, needs_gradient = (
                dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True)),
                dict(zip(self.arguments, ctx.needs_input_grad)),
            )
            by_name = ctx.plain | saved
            w = dense(self._weight_of(by_name))
            rows = dy.t() if by_name["y_feature_major"] else dy  # [M, N]
            gradients = {"residual": dy} if needs_gradient.get("residual") else {}
            activation = by_name.get("activation", "none")
            if activation != "none":
                x = by_name["x"].t() if by_name["x_feature_major"] else by_name["x"]
                rows = activation_gradient(rows, x, w, by_name.get("bias"), activation)
            if needs_gradient["bias"]:
                gradients["bias"] = rows.sum(dim=0, dtype=accumulation_dtype(rows.dtype)).to(ctx.bias_dtype)
            if needs_gradient["x"]:
                gradients["x"] = w.t() @ rows.t() if by_name["x_feature_major"] else rows @ w
            return tuple(gradients.get(argument) for argument in self.arguments)

        self.op.register_autograd(backward, setup_context=setup_context)

    def _execute(self, *values: Any) -> Tensor:
        by_name = dict(zip(self.arguments, values, strict=True))
        x, weight, bias = by_name["x"], self._weight_of(by_name), by_name["bias"]
        by_input, by_output = by_name["x_feature_major"], by_name["y_feature_major"]
        if self.most_rows is not None and x.shape[by_input] > (most := self.most_rows(weight)):
            return self._execute_in_parts(by_name, most)
        if self.run is not None:
            return self.run(x, weight, bias, **{keyword: by_name[keyword] for keyword in self.keywords})
        check_operands(x, by_name[self.values], bias, k=weight.k, n=weight.n, feature_major=by_input)
        y, residual, activation = self._empty(by_name), by_name.get("residual"), by_name.get("activation", "none")
        check_epilogue(y, activation, residual)
        if y.numel() > 0:
            with torch.cuda.device_of(x):
                epilogue = Epilogue(bias_for_kernel(bias), activation, residual)
                self.multiply(x, y, weight, epilogue, by_input, by_output)  # type: ignore[misc]
        return y

    def _execute_in_parts(self, by_name: dict[str, Any], most: int) -> Tensor:
        parts = by_name["x"].split(most, dim=int(by_name["x_feature_major"]))
        by_output, added = int(by_name["y_feature_major"]), by_name.get("residual")
        each = [{}] * len(parts) if added is None else [{"residual": one} for one in added.split(most, dim=by_output)]
        products = [
            self._execute(*(by_name | {"x": part} | one).values()) for part, one in zip(parts, each, strict=True)
        ]
        if self.transposed_y and not by_output:
            return torch.cat([y.t() for y in products], dim=1).t()
        return torch.cat(products, dim=by_output)

    def _fake(self, *values: Any) -> Tensor:
        return self._empty(dict(zip(self.arguments, values, strict=True)))

    def _empty(self, by_name: dict[str, Any]) -> Tensor:
        x, n, by_output = by_name["x"], by_name["n"], by_name["y_feature_major"]
        if self.output is not None:
            return self.output(x, n, by_name["x_feature_major"], by_output)
        y = empty_output(x, n, by_name["x_feature_major"], by_output or self.transposed_y)
        return y.t() if self.transposed_y and not by_output else y

    def _weight_of(self, named: dict[str, Any]) -> Any:
        lists = {part: tuple(named[part]) for part in self.lists}
        return self.weight(**{part: named[part] for part in self.parts} | lists)


def activation_gradient(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """dZ [M, N] = dY · activation'(X · Wᵀ + bias) in dy's dtype.

    Args:
        dy: [M, N].
        x: [M, K].
        weight: [N, K].
        bias: [N] or None.
        activation: a name in `epilogue.ACTIVATIONS` other than "none".
    """
    z = x @ weight.t()
    precision = accumulation_dtype(dy.dtype)
    z = z.to(precision) if bias is None else z.to(precision) + bias.to(precision)
    upcast = dy.to(precision)
    if activation == "relu":
        return torch.where(z > 0, upcast, 0.0).to(dy.dtype)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(upcast, z, approximate=approximate).to(dy.dtype)
