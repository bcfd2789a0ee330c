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


def square_blocks(n: int, k: int, side: int, sparsity: float, device: torch.device) -> Tensor:
    """Blocks of side × side, of each block row the same number; bool [N, K], whose sizes `side` must divide."""
    kept = max(1, round((1 - sparsity) * (k // side)))
    places = torch.rand(n // side, k // side, device=device).argsort(dim=1).argsort(dim=1)
    return (places < kept).repeat_interleave(side, dim=0).repeat_interleave(side, dim=1)


def half_of_groups(n: int, k: int, group_m: int, device: torch.device) -> Tensor:
    """Half of every `group_m` inputs, drawn at random; bool [N, K]."""
    places = torch.rand(n, k // group_m, group_m, device=device).argsort(dim=2).argsort(dim=2)
    return (places < group_m // 2).reshape(n, k)


RANDOM_TILES: dict[str, Callable[[int, int, int, float, torch.device], Tensor]] = {
    "equal": equal_tiles,
    "uneven": uneven_tiles,
}
