"""What the layers of a network multiply with their weights, seen while it runs."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.forward_calls import before_forward, first_argument
from sparsefront.masks.weight_view import pixel_rows


def as_rows(module: nn.Module, x: Tensor, real: Tensor | None = None) -> Tensor:
    """The matrix X [rows, K] of the layer's product Y = X W^T, with W the weight seen as a matrix [N, K].

    Args:
        module: Linear, or Conv2d in one group.
        x: [..., K], or [B, C_in, height, width], any float dtype.
        real: bool [B, positions], the positions of a text that are no padding: of an x [B, positions, K] only these are
            rows. Of whatever is computed at padding nothing reaches the loss.
    Returns:
        float32; a convolution's has one row per output pixel and columns in the order of
            the weight seen as a matrix.
    """
    x = x.float()
    if not isinstance(module, nn.Conv2d):
        padded = real is not None and x.shape[:-1] == real.shape
        return x[real] if padded else x.reshape(-1, x.shape[-1])
    if x.dim() == 3:  # Conv2d also takes a single image
        x = x.unsqueeze(0)
    x = F.pad(x, _padding(module), mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    return pixel_rows(x, module.kernel_size, dilation=module.dilation, stride=module.stride)


def _padding(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Left, right, top, bottom, as `F.pad` wants it; "same" puts an odd pixel right and below."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    if module.padding == "same":
        (height, width) = (d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
        return width // 2, width - width // 2, height // 2, height - height // 2
    height, width = module.padding
    return width, width, height, height


@torch.no_grad()
def sum_over_inputs(
    forward: Callable[[Any], Any],
    batches: Iterable[Any],
    modules: dict[str, nn.Module],
    statistic: Callable[[Tensor], Tensor],
    *,
    real_positions: Callable[[Any], Tensor | None] = lambda batch: None,
    of_that_text: Callable[[str, Tensor], bool] = lambda name, x: True,
) -> dict[str, Tensor]:
    """Per layer the sum of `statistic(X)` over all its calls; no X outlives its call.

    Args:
        forward: runs the network on a batch.
        real_positions: of a batch: `real` of `as_rows`.
        of_that_text: whether what a layer is given has these positions, where its shape says that it may.
        modules: layer name -> module; one that is called several times in a forward adds up all of them.
        statistic: of X, float32 [rows, K]; adds up over rows.
    Raises:
        ValueError: a layer that a batch did not reach; names it.
    """
    # Of no rows: zeros of the right shape, where there is no batch to read.
    sums = {
        name: statistic(module.weight.new_zeros((0, module.weight[0].numel()), dtype=torch.float32))
        for name, module in modules.items()
    }
    reached: set[str] = set()
    real: Tensor | None = None

    def add(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reached.add(name)
        x = first_argument(args, kwargs)
        sums[name] += statistic(as_rows(modules[name], x, real if of_that_text(name, x) else None))

    with before_forward(modules, add):
        for batch in batches:
            real = real_positions(batch)
            forward(batch)
            _require_reached(modules, reached)
    return sums


@torch.no_grad()
def in_order_of_use(forward: Callable[[Any], Any], batch: Any, modules: dict[str, nn.Module]) -> list[list[str]]:
    """Layers in the order of their first call; those called in turn on the very same tensor (query, key and value of an
    attention) are one group, because none of them can change what the others are given.

    Raises:
        ValueError: a layer that the batch does not reach; names it.
    """
    groups: list[list[str]] = []
    seen: set[str] = set()
    last: list[Tensor] = []

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in seen:
            return
        seen.add(name)
        x = first_argument(args, kwargs)
        if last and last[0] is x:
            groups[-1].append(name)
        else:
            groups.append([name])
            last[:] = [x]

    with before_forward(modules, note):
        forward(batch)
    _require_reached(modules, seen)
    return groups


def _require_reached(modules: dict[str, nn.Module], reached: set[str]) -> None:
    if unreached := [name for name in modules if name not in reached]:
        raise ValueError(f"the network never calls {', '.join(unreached)}: what it is given cannot be seen")
