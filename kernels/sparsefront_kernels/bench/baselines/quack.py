"""QuACK's grouped GEMM on the weight that our kernels multiply by: a group is a tile.

It is measured at its best: Y is compact, with the outputs tile by tile as they are stored and what is pruned left out, where
our kernels write all of Y in its own order. `gathered_quack` is what it costs to have that.
"""

from functools import partial

from torch import Tensor

from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Provider, numbered
from sparsefront_kernels.common.launch import num_sms
from sparsefront_kernels.common.operands import run_length
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered.quack import (
    QuackLaunch,
    QuackPackedWeight,
    QuackProblem,
    candidates,
    pack_for_quack,
    package_unavailable_reason,
    tiled_product,
)

KERNEL = "quack_compact"
FAMILY = "gathered"  # what it multiplies by
LAYOUT = "feature_major"


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    return package_unavailable_reason() if dtype_name in ("fp16", "bf16") else "it gathers 16-bit types alone"


def providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """Every launch worth timing.

    X is padded beforehand to an M that it takes; the padding is not in its time.

    Raises:
        ValueError: tiles that cannot be groups.
    """
    run = run_length(setting.dtype)
    rows = -(-setting.shape.m // run) * run
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, GatheredFormat)
    packed = pack_for_quack(stored)
    copies = numbered(packed)

    def provider(launch: QuackLaunch) -> Provider:
        def make(copy: int):
            x, own = setting.x_in(LAYOUT, copy, rows=rows), copies(copy)
            return lambda: tiled_product(x, own, launch)

        return Provider(
            family="quack",
            kernel=KERNEL,
            pattern=drawn.pattern,
            granularity=drawn.granularity,
            distribution=drawn.distribution,
            mask_settings=drawn.mask_settings,
            dtype_name=setting.dtype_name,
            layout=LAYOUT,
            sparsity=drawn.sparsity,
            outputs=len(packed.outputs),
            operand_bytes=stored.nbytes + setting.activation_bytes,
            weight_bytes=stored.nbytes,
            make=make,
            reference=drawn.reference,
            whole=partial(_whole, packed=packed, m=setting.shape.m),
        )

    problem = QuackProblem.of(packed, rows)
    return [provider(launch) for launch in candidates(problem, num_sms(setting.device))]


def _whole(tiled: Tensor, *, packed: QuackPackedWeight, m: int) -> Tensor:
    """All of Y [N, M] from its stored outputs, tile by tile."""
    stored = tiled[: len(packed.outputs), :m]
    return tiled.new_zeros(packed.n, m).index_copy(0, packed.outputs.long(), stored)
