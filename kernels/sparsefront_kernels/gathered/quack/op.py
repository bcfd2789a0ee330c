"""The product through QuACK as a PyTorch op, feature-major."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import aligned_by_input, check_operands
from sparsefront_kernels.gathered.quack.packed_weight import dense_weight
from sparsefront_kernels.gathered.quack.product import tiled_product
from sparsefront_kernels.gathered.quack.tuning import LAUNCHES, QuackProblem


@torch.library.custom_op("sparsefront::gathered_quack", mutates_args=())
def gathered_quack(
    x: Tensor,
    panels: Tensor,
    kept: Tensor,
    offsets: Tensor,
    order: Tensor | None,
    rows: Tensor,
    n: int,
    k: int,
    consecutive: bool,
) -> Tensor:
    """Y = W · X with the arguments of `QuackPackedWeight`.

    Args:
        x: [K, M]; float16 or bfloat16 as `panels`, any strides. An M that is no multiple of 8 and unaligned rows cost a
            copy of X, and the former one of Y.
    Returns:
        [N, M], contiguous, in x's dtype; added up in float32. Where outputs are dropped or permuted Y is copied into its
        own order: QuACK writes tiles one after the other.
    Raises:
        ValueError: operands that do not fit together.
    """
    check_operands(x, panels, None, k=k, n=n, feature_major=True)
    m, tiles, width = x.shape[1], len(offsets) - 1, panels.shape[1]
    if m == 0:
        return x.new_empty(n, 0)
    with torch.cuda.device_of(x):
        by_input = aligned_by_input(x, feature_major=True)
        problem = QuackProblem(by_input.shape[1], k, n, width, tiles, len(kept), order is not None)
        launch = LAUNCHES.launch_for(problem, x.device)
        if consecutive:
            return tiled_product(by_input, panels, kept, offsets, order, launch)[:n, :m].contiguous()
        tiled = tiled_product(by_input, panels, kept, offsets, order, launch, more=1)
        tiled[-1].zero_()  # what outputs that are not stored are
        return tiled.index_select(0, rows)[:, :m].contiguous()


@gathered_quack.register_fake
def _(x, panels, kept, offsets, order, rows, n, k, consecutive):
    return x.new_empty(n, x.shape[1])


def _keep_for_backward(ctx, inputs: tuple, output: Tensor) -> None:
    _, panels, kept, offsets, _, rows, _, k, _ = inputs
    if ctx.needs_input_grad[1]:
        raise ValueError("gathered_quack: the weight is stored, not trained, so panels has no gradient")
    ctx.save_for_backward(panels, kept, offsets, rows)
    ctx.k = k


def _backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    """dX = Wᵀ · dY with W rebuilt dense, as the other gathered kernels do."""
    panels, kept, offsets, rows = ctx.saved_tensors
    return (dense_weight(panels, kept, offsets, rows, ctx.k).t() @ dy, *[None] * 8)


torch.library.register_autograd("sparsefront::gathered_quack", _backward, setup_context=_keep_for_backward)
