"""The random masks on which each storage family is timed: they have the structure of its pattern and do not depend on weights."""

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
    """Masks for `gathered`: tiles keep random inputs, as many as `RANDOM_TILES` says, and all outputs."""

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return RANDOM_TILES[distribution](n, k, granularity, sparsity, device)

    pattern = {"equal": "vector_wise", "uneven": "tile_wise"}[distribution]
    return RandomMasks(pattern, mask, {"gathered": {"tile": granularity, "drop_empty_outputs": False}})


def overlaid_tiles(distribution: str, granularity: int, *, overlay: float = 0.05) -> RandomMasks:
    """Masks for `gathered_overlay`: random tiles, and a fraction `overlay` of all weights anywhere, which counts as kept."""

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        tiled = min(sparsity + overlay, 1.0)  # pruned by the tiles
        alone = overlay / tiled if overlay else 0.0  # fraction of these that is kept
        tiles = RANDOM_TILES[distribution](n, k, granularity, tiled, device)
        return tiles | (torch.rand(n, k, device=device) < alone)

    return RandomMasks("tile_wise", mask, {"gathered_overlay": {"tile": granularity}}, f"overlay={overlay:g}")


def halved_tiles(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `gathered_2_4`: tiles keep equally many random inputs, and each output two of every four of these."""

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        density = _density_of_half("tile_2_4", sparsity)
        windows = max(1, min(k // GROUP, round(density * k / GROUP)))
        drawn = torch.rand(-(-n // granularity), k, device=device).argsort(dim=1)[:, : windows * GROUP]
        inputs = drawn.sort(dim=1).values.repeat_interleave(granularity, dim=0)[:n]
        keeps = torch.rand(n, windows, GROUP, device=device).argsort(dim=2).argsort(dim=2) < 2
        return torch.zeros(n, k, dtype=torch.bool, device=device).scatter_(1, inputs, keeps.flatten(1))

    whole = {"tile": granularity, "drop_empty_outputs": True, "fill": True}
    return RandomMasks("tile_2_4", mask, {"gathered_2_4": {"tile": granularity}, "gathered": whole})


def _density_of_half(pattern: str, sparsity: float) -> float:
    """Density of tiles or blocks of which 2:4 prunes a half."""
    if sparsity < 0.5:
        raise ValueError(f"{pattern}: 2:4 prunes a half, so sparsity={sparsity} must be at least 0.5")
    return 2 * (1 - sparsity)


def blocks(distribution: str, granularity: int, *, inputs: int | None = None) -> RandomMasks:
    """Masks for `blocked`: rows of blocks keep random blocks, as many as `RANDOM_TILES` says.

    Args:
        granularity: outputs of a block.
        inputs: of a block; None: as many as outputs.
    """
    block = (granularity, inputs or granularity)

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_blocks(n, k, block, sparsity, device, distribution=distribution)

    # the outputs of a row of blocks keep the same inputs: a gathered tile
    storage: Storage = {"blocked": {"block": block}, "gathered": {"tile": granularity, "drop_empty_outputs": False}}
    return RandomMasks("block_wise", mask, storage, f"inputs={inputs}" if inputs else "")


def halved_blocks(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `blocked_2_4`: equally many random square blocks per row of blocks, and in them two of every four inputs."""
    block = (granularity, granularity)

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        density = _density_of_half("block_2_4", sparsity)
        return random_blocks(n, k, block, 1 - density, device) & random_groups(n, k, 2, 4, device)

    storage: Storage = {
        "blocked_2_4": {"block": block},
        "blocked": {"block": block, "fill": True},
        "gathered": {"tile": granularity, "drop_empty_outputs": False, "fill": True},
    }
    return RandomMasks("block_2_4", mask, storage)


def groups(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `n_m`: n random inputs of every m = granularity; n follows from the sparsity."""

    def count_kept(sparsity: float) -> int:
        return max(1, round((1 - sparsity) * granularity))

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_groups(n, k, count_kept(sparsity), granularity, device)

    def storage(sparsity: float) -> Storage:
        two_of_four: Storage = {"semi_structured": {}} if (count_kept(sparsity), granularity) == (2, 4) else {}
        return {"n_m": {"n": count_kept(sparsity), "m": granularity}} | two_of_four

    return RandomMasks("n_m", mask, storage)


def halves(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `semi_structured`: two random inputs of every four at any requested sparsity."""
    if granularity != 4:
        raise ValueError(f"--granularity {granularity}: 2:4 has groups of 4")

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_groups(n, k, 2, 4, device)

    return RandomMasks("n_m", mask, {"semi_structured": {}, "n_m": {"n": 2, "m": 4}})


def uniform_rows(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `ell`: every row of blocks of side 1, 2 or 4 keeps equally many random blocks."""
    block = (granularity, granularity)

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return random_blocks(n, k, block, sparsity, device)

    storage: Storage = {"ell": {"block": granularity}, "blocked": {"block": block}}
    return RandomMasks("uniform", mask, storage | ({"csr": {}} if granularity == 1 else {}))


def single_weights(distribution: str, granularity: int) -> RandomMasks:
    """Masks for `csr`: every weight is kept with the same probability."""

    def mask(n: int, k: int, sparsity: float, device: torch.device) -> Tensor:
        return torch.rand(n, k, device=device) >= sparsity

    return RandomMasks("element_wise", mask, {"csr": {}})


_FAMILY_MASKS = {
    "gathered": FamilyMasks("gathered", tuple(RANDOM_TILES), 128, random_tiles),
    "gathered_overlay": FamilyMasks("gathered_overlay", tuple(RANDOM_TILES), 128, overlaid_tiles),
    "gathered_2_4": FamilyMasks("gathered_2_4", ("equal",), 128, halved_tiles),
    "blocked": FamilyMasks("blocked", tuple(RANDOM_TILES), 128, blocks),
    "blocked_2_4": FamilyMasks("blocked_2_4", ("equal",), 128, halved_blocks),
    "n_m": FamilyMasks("n_m", ("balanced",), 32, groups),
    "semi_structured": FamilyMasks("semi_structured", ("balanced",), 4, halves),
    "ell": FamilyMasks("ell", ("equal",), 1, uniform_rows),
    "csr": FamilyMasks("csr", ("free",), 1, single_weights),
}
FAMILIES = tuple(_FAMILY_MASKS)  # all but dense, the baseline


def family_masks(family: str) -> FamilyMasks:
    """The random masks of a family of `FAMILIES`."""
    return _FAMILY_MASKS[family]
