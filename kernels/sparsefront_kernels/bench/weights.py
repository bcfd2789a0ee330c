"""Random masks with the structure of a pattern, whose units are drawn without a look at weights."""

from collections.abc import Callable

import torch
from torch import Tensor


def equal_tiles(n: int, k: int, granularity: int, sparsity: float, device: torch.device) -> Tensor:
    """Each tile of `granularity` outputs keeps the same number of inputs, drawn at random. Gives bool [N, K]."""
    tiles = -(-n // granularity)
    kept = round((1 - sparsity) * k)
    places = torch.rand(tiles, k, device=device).argsort(dim=1).argsort(dim=1)
    return (places < kept).repeat_interleave(granularity, dim=0)[:n]


def uneven_tiles(n: int, k: int, granularity: int, sparsity: float, device: torch.device) -> Tensor:
    """Tiles keep between half and one and a half times the mean, as a global threshold leaves them; bool [N, K]."""
    tiles = -(-n // granularity)
    shares = torch.linspace(0.5, 1.5, tiles, device=device)[torch.randperm(tiles, device=device)] if tiles > 1 else 1.0
    kept = ((1 - sparsity) * k * shares) * torch.ones(tiles, device=device)
    places = torch.rand(tiles, k, device=device).argsort(dim=1).argsort(dim=1)
    return (places < kept.round().clamp(max=k)[:, None]).repeat_interleave(granularity, dim=0)[:n]


def random_blocks(
    n: int, k: int, block: tuple[int, int], sparsity: float, device: torch.device, *, distribution: str = "equal"
) -> Tensor:
    """Blocks of outputs × inputs, of each block row as many as `RANDOM_TILES` says and at least one; bool [N, K].

    Raises:
        ValueError: the block does not divide the weight.
    """
    height, width = block
    if n % height or k % width:
        raise ValueError(f"blocks of {height}x{width} do not divide the weight [N, K] = {[n, k]}")
    most = 1 - 1 / (k // width)  # one block in each row of blocks is left
    mask = RANDOM_TILES[distribution](n, k // width, height, min(sparsity, most), device)
    return mask.repeat_interleave(width, dim=1)


def random_groups(n: int, k: int, kept: int, group_m: int, device: torch.device) -> Tensor:
    """`kept` of every `group_m` consecutive inputs, drawn at random; bool [N, K].

    Raises:
        ValueError: groups that do not divide K.
    """
    if k % group_m:
        raise ValueError(f"groups of {group_m} inputs do not divide K = {k}")
    places = torch.rand(n, k // group_m, group_m, device=device).argsort(dim=2).argsort(dim=2)
    return (places < kept).reshape(n, k)


RANDOM_TILES: dict[str, Callable[[int, int, int, float, torch.device], Tensor]] = {
    "equal": equal_tiles,
    "uneven": uneven_tiles,
}
