"""The random masks on which each storage family is timed.

First what they are made of, then a function for each family, and the table of families. A mask has the structure of the
family's pattern and is drawn without a look at weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels.bench.masks import FamilyMasks, RandomMasks, Storage
from sparsefront_kernels.indices import GROUP


def equal_tiles(n: int, k: int, granularity: int, sparsity: float, device: torch.device) -> Tensor:
    """Each tile of `granularity` outputs keeps the same number of random inputs; returns bool [N, K]."""
    tiles = -(-n // granularity)
    kept_count = round((1 - sparsity) * k)
    places = torch.rand(tiles, k, device=device).argsort(dim=1).argsort(dim=1)
    return (places < kept_count).repeat_interleave(granularity, dim=0)[:n]


def uneven_tiles(n: int, k: int, granularity: int, sparsity: float, device: torch.device) -> Tensor:
    """Tiles keep between half and one and a half times the mean, as after a global threshold; bool [N, K]."""
    tiles = -(-n // granularity)
    shares = torch.linspace(0.5, 1.5, tiles, device=device)[torch.randperm(tiles, device=device)] if tiles > 1 else 1.0
    kept_counts = ((1 - sparsity) * k * shares) * torch.ones(tiles, device=device)
    places = torch.rand(tiles, k, device=device).argsort(dim=1).argsort(dim=1)
    return (places < kept_counts.round().clamp(max=k)[:, None]).repeat_interleave(granularity, dim=0)[:n]


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


def random_tiles(distribution: str, granularity: int) -> RandomMasks:
    """Of `gathered`: tiles keep random inputs, as many as `RANDOM_TILES` says, and all outputs."""
    storage: Storage = {"gathered": {"tile": granularity, "drop_empty_outputs": False}}

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return RANDOM_TILES[distribution](n, k, granularity, sparsity, device)

    pattern = {"equal": "vector_wise", "uneven": "tile_wise"}[distribution]
    return RandomMasks(pattern, mask, lambda sparsity: storage)


def overlaid_tiles(distribution: str, granularity: int, *, overlay: float = 0.05) -> RandomMasks:
    """Of `gathered_overlay`: random tiles, and a share of all weights wherever they are.

    Args:
        overlay: that share, which counts as kept.
    """
    storage: Storage = {"gathered_overlay": {"tile": granularity}}

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        tiles = RANDOM_TILES[distribution](n, k, granularity, min(sparsity + overlay, 1.0), device)
        alone = overlay / min(sparsity + overlay, 1.0) if overlay else 0.0  # of what the tiles prune
        return tiles | (torch.rand(n, k, device=device) < alone)

    return RandomMasks("tile_wise", mask, lambda sparsity: storage, f"overlay={overlay:g}")


def halved_tiles(distribution: str, granularity: int) -> RandomMasks:
    """Of `gathered_2_4`: tiles keep equally many random inputs, and each output two random ones of every four of its tile's."""
    storage: Storage = {
        "gathered_2_4": {"tile": granularity},
        "gathered": {"tile": granularity, "drop_empty_outputs": True, "fill": True},
    }

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        if sparsity < 0.5:
            raise ValueError(f"tile_2_4: 2:4 prunes a half, so that a sparsity of {sparsity} cannot be had")
        windows = max(1, min(k // GROUP, round(2 * (1 - sparsity) * k / GROUP)))
        drawn = torch.rand(-(-n // granularity), k, device=device).argsort(dim=1)[:, : windows * GROUP]
        inputs = drawn.sort(dim=1).values.repeat_interleave(granularity, dim=0)[:n]
        keeps = torch.rand(n, windows, GROUP, device=device).argsort(dim=2).argsort(dim=2) < 2
        return torch.zeros(n, k, dtype=torch.bool, device=device).scatter_(1, inputs, keeps.flatten(1))

    return RandomMasks("tile_2_4", mask, lambda sparsity: storage)


def blocks(distribution: str, granularity: int, *, inputs: int | None = None) -> RandomMasks:
    """Of `blocked`: rows of blocks that keep random blocks, as many as `RANDOM_TILES` says.

    Args:
        granularity: outputs of a block.
        inputs: of a block; None: as many as outputs.
    """
    block = (granularity, inputs or granularity)
    # the outputs of a row of blocks keep the same inputs: a gathered tile
    storage: Storage = {"blocked": {"block": block}, "gathered": {"tile": granularity, "drop_empty_outputs": False}}

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_blocks(n, k, block, sparsity, device, distribution=distribution)

    return RandomMasks("block_wise", mask, lambda sparsity: storage, f"inputs={inputs}" if inputs else "")


def halved_blocks(distribution: str, granularity: int) -> RandomMasks:
    """Of `blocked_2_4`: random square blocks, equally many in each row of blocks, and two random inputs of every four in them."""
    block = (granularity, granularity)
    storage: Storage = {
        "blocked_2_4": {"block": block},
        "blocked": {"block": block, "fill": True},
        "gathered": {"tile": granularity, "drop_empty_outputs": False, "fill": True},
    }

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        if sparsity < 0.5:
            raise ValueError(f"block_2_4: 2:4 prunes a half, so that a sparsity of {sparsity} cannot be had")
        return random_blocks(n, k, block, 2 * sparsity - 1, device) & random_groups(n, k, 2, 4, device)

    return RandomMasks("block_2_4", mask, lambda sparsity: storage)


def groups(distribution: str, granularity: int) -> RandomMasks:
    """Of `n_m`: n random inputs of every m.

    Args:
        granularity: m; n follows from the sparsity.
    """

    def kept(sparsity: float) -> int:
        return max(1, round((1 - sparsity) * granularity))

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_groups(n, k, kept(sparsity), granularity, device)

    def storage(sparsity: float) -> Storage:
        two_of_four: Storage = {"semi_structured": {}} if (kept(sparsity), granularity) == (2, 4) else {}
        return {"n_m": {"n": kept(sparsity), "m": granularity}} | two_of_four

    return RandomMasks("n_m", mask, storage)


def halves(distribution: str, granularity: int) -> RandomMasks:
    """Of `semi_structured`: two random inputs of every four, whatever sparsity is asked for."""
    if granularity != 4:
        raise ValueError(f"--granularity {granularity}: 2:4 has groups of 4")
    storage: Storage = {"semi_structured": {}, "n_m": {"n": 2, "m": 4}}

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_groups(n, k, 2, 4, device)

    return RandomMasks("n_m", mask, lambda sparsity: storage)


def uniform_rows(distribution: str, granularity: int) -> RandomMasks:
    """Of `ell`: every row of blocks keeps equally many random blocks.

    Args:
        granularity: side of a block: 1, 2 or 4.
    """
    block = (granularity, granularity)
    storage: Storage = {"ell": {"block": granularity}, "blocked": {"block": block}}
    storage |= {"csr": {}} if granularity == 1 else {}

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_blocks(n, k, block, sparsity, device)

    return RandomMasks("uniform", mask, lambda sparsity: storage)


def single_weights(distribution: str, granularity: int) -> RandomMasks:
    """Of `csr`: every weight is kept with the same chance."""

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return torch.rand(n, k, device=device) >= sparsity

    return RandomMasks("element_wise", mask, lambda sparsity: {"csr": {}})


_FAMILY_MASKS = {
    masks.family: masks
    for masks in (
        FamilyMasks("gathered", tuple(RANDOM_TILES), granularity=128, source=random_tiles),
        FamilyMasks("gathered_overlay", tuple(RANDOM_TILES), granularity=128, source=overlaid_tiles),
        FamilyMasks("gathered_2_4", ("equal",), granularity=128, source=halved_tiles),
        FamilyMasks("blocked", tuple(RANDOM_TILES), granularity=128, source=blocks),
        FamilyMasks("blocked_2_4", ("equal",), granularity=128, source=halved_blocks),
        FamilyMasks("n_m", ("balanced",), granularity=32, source=groups),
        FamilyMasks("semi_structured", ("balanced",), granularity=4, source=halves),
        FamilyMasks("ell", ("equal",), granularity=1, source=uniform_rows),
        FamilyMasks("csr", ("free",), granularity=1, source=single_weights),
    )
}
FAMILIES = tuple(_FAMILY_MASKS)  # all but dense, which all are compared with


def family_masks(family: str) -> FamilyMasks:
    """What a family of `FAMILIES` gives to the benchmark."""
    return _FAMILY_MASKS[family]
