"""The PyTorch op of a kernel of which every lane owns rows of X."""

from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import bias_for_kernel, check_operands
from sparsefront_kernels.common.slab_launch import SlabProblem, rows_unsupported_reason
from sparsefront_kernels.common.slab_lists import SPARE_QUADS
from sparsefront_kernels.common.slab_product import launch_slab_product
from sparsefront_kernels.tuning import TunedLaunches


def slab_op(launches: TunedLaunches) -> Callable[..., Tensor]:
    """`torch.ops.sparsefront.<kernel>`: Yᵀ = W · Xᵀ + bias with the tensors of `SlabLists`.

    Args of the op:
        x: [M, K], or [K, M] where x_feature_major; float16, bfloat16 or float32 as `values`, any strides.
        bias: [N], any float dtype, or None.
    Returns of the op:
        [N, M], contiguous, whatever the layout of x, in x's dtype; added up in float32.
    Raises of the op:
        ValueError: operands that do not fit together, or more rows than a grid has blocks for.

    Args:
        launches: of the kernel, which is named like its library.
    """

    def product(
        x: Tensor,
        values: Tensor,
        places: Tensor,
        pointers: Tensor,
        order: Tensor | None,
        bias: Tensor | None,
        n: int,
        k: int,
        x_feature_major: bool,
    ) -> Tensor:
        check_operands(x, values, bias, k=k, n=n, feature_major=x_feature_major)
        x = x if x_feature_major else x.t()
        if reason := rows_unsupported_reason(x.shape[1], x.element_size()):
            raise ValueError(f"{launches.kernel}: {reason}")
        y = x.new_empty(n, x.shape[1])
        if y.numel() == 0:
            return y
        block, quads = values.shape[2], len(values) - SPARE_QUADS
        problem = SlabProblem(x.shape[1], k, n // block, block, quads, x.element_size(), x_feature_major)
        with torch.cuda.device_of(x):
            launch_slab_product(
                launches.kernel,
                x,
                y,
                values=values,
                places=places,
                pointers=pointers,
                order=order,
                bias=bias_for_kernel(bias),
                problem=problem,
                launch=launches.launch_for(problem, x.device),
            )
        return y

    op = torch.library.custom_op(f"sparsefront::{launches.kernel}", product, mutates_args=())
    op.register_fake(_empty)
    return op


def _empty(x, values, places, pointers, order, bias, n, k, x_feature_major):
    return x.new_empty(n, x.shape[1 if x_feature_major else 0])
