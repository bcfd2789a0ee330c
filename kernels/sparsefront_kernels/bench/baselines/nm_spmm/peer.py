"""NM-SpMM on the weight that our kernels multiply by, where that keeps n of every m inputs in vectors of 32 outputs.

X is feature-major and Y row-major, as its kernels have them (A is column-major there, C row-major).
"""

from collections.abc import Callable

import torch

from sparsefront_kernels.bench.baselines.nm_spmm.library import NmSpmmLaunch, launch_nm_spmm, load, unavailable_reason
from sparsefront_kernels.bench.baselines.nm_spmm.packed_weight import WINDOWS, NmSpmmPackedWeight, pack_for_nm_spmm
from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
from sparsefront_kernels.bench.provider import Call, Provider
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.shapes import Shape
from sparsefront_kernels.gathered.format import GatheredFormat

KERNEL = "nm_spmm"
FAMILY = "gathered"  # what it multiplies by
LAYOUT = "feature_to_row"
TILES = ((32, 32), (32, 64), (64, 64), (64, 128))  # rows of X × outputs of a block: its four kernels
SPLITS = (1, 2, 4, 8)  # those of its own benchmark, which takes the fastest kernel with the fastest of them
LARGEST = 1 << 31  # elements of X, W and Y, whose offsets are 32-bit numbers


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    if dtype_name != "fp32":
        return "NM-SpMM multiplies float32 alone, exactly"
    if sparsity not in WINDOWS:
        return f"NM-SpMM is compiled for sparsities of {', '.join(map(str, WINDOWS))}, not {sparsity:g}"
    return unavailable_reason()


def launches(shape: Shape, window: int, kept: int) -> list[NmSpmmLaunch]:
    """Every kernel whose tiles divide the product, with as many splits as it has windows for.

    Left out is tile 32 × 32 with 12 of 32: its copies of 8 rows of weights at a time run over the stage's 12.

    Raises:
        ValueError: none does, or an offset that 32 bits do not hold.
    """
    if max(shape.m * shape.k, shape.m * shape.n, shape.k * shape.n) >= LARGEST:
        raise ValueError(f"NM-SpMM counts elements in 32 bits, which {shape.m}x{shape.k}x{shape.n} exceeds")
    tiles = [
        (m, n) for m, n in TILES if shape.m % m == 0 and shape.n % n == 0 and not ((m, n) == TILES[0] and kept % 8)
    ]
    if not tiles:
        raise ValueError(f"NM-SpMM takes M and N that are multiples of 32, not M = {shape.m}, N = {shape.n}")
    splits = [splits for splits in SPLITS if splits <= shape.k // window]
    return [NmSpmmLaunch(*tile, count) for tile in tiles for count in splits]


def providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """Every kernel that fits, with every number of splits; the zeros that splits add to are in their time.

    Raises:
        ValueError: a shape or a mask that it does not take.
        RuntimeError: it cannot be built.
    """
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, GatheredFormat)
    packed: dict[int, Callable[[int], NmSpmmPackedWeight]] = {}  # kernels of as many outputs share it
    found = []
    for launch in launches(setting.shape, *WINDOWS[setting.sparsity]):
        if launch.tile_n not in packed:
            packed[launch.tile_n] = numbered(pack_for_nm_spmm(stored, launch.tile_n))
        found.append(_provider(setting, drawn, stored, launch, packed[launch.tile_n]))
    load(torch.cuda.get_device_capability(setting.device))  # said once where it cannot be built, not for each launch
    return found


def _provider(
    setting: Setting,
    drawn: DrawnWeight,
    stored: GatheredFormat,
    launch: NmSpmmLaunch,
    packed: Callable[[int], NmSpmmPackedWeight],
) -> Provider:
    def make(copy: int) -> Call:
        x, own = setting.x_in(LAYOUT, copy), packed(copy)
        return lambda: launch_nm_spmm(x, own, launch)

    return Provider(
        family="nm_spmm",
        kernel=KERNEL,
        pattern=drawn.pattern,
        granularity=drawn.granularity,
        distribution=drawn.distribution,
        mask_settings=drawn.mask_settings,
        dtype_name=setting.dtype_name,
        layout=LAYOUT,
        sparsity=drawn.sparsity,
        operand_bytes=stored.nbytes + setting.activation_bytes,
        weight_bytes=stored.nbytes,
        make=make,
        reference=drawn.reference,
    )
