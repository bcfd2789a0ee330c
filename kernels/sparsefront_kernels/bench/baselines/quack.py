"""QuACK's grouped GEMM with the same weight as our kernels: each tile is a group.

Measured at its best: Y is compact, with outputs in tile order and without pruned ones, whereas our kernels write all of Y in
its original order. `gathered_quack` includes the cost of that.
"""

from functools import partial

from torch import Tensor

from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Provider, numbered, provider_of
from sparsefront_kernels.cuda.launch import num_sms
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
from sparsefront_kernels.operands import run_length

KERNEL = "quack_compact"
FAMILY = "gathered"  # storage of the weight
LAYOUT = "feature_major"


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it is unsupported for any shape, or None."""
    return package_unavailable_reason() if dtype_name in ("fp16", "bf16") else "it gathers 16-bit types alone"


def providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """Every launch worth timing.

    X is padded beforehand to a supported M; padding is not timed.

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

        return provider_of(
            setting,
            family="quack",
            kernel=KERNEL,
            layout=LAYOUT,
            outputs=len(packed.outputs),
            weight_bytes=stored.nbytes,
            make=make,
            whole=partial(_whole, packed=packed, m=setting.shape.m),
            **drawn.columns,
        )

    problem = QuackProblem.of(packed, rows)
    return [provider(launch) for launch in candidates(problem, num_sms(setting.device))]


def _whole(tiled: Tensor, *, packed: QuackPackedWeight, m: int) -> Tensor:
    """Expand stored outputs in tile order to all of Y [N, M]."""
    stored = tiled[: len(packed.outputs), :m]
    return tiled.new_zeros(packed.n, m).index_copy(0, packed.outputs.long(), stored)
