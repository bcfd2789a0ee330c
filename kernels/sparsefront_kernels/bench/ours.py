"""The kernels of this package as contenders, tuned first where a kernel has launch parameters to tune."""

import torch

from sparsefront_kernels.bench.contender import Contender, measure
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import DISTRIBUTIONS
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered import tuning
from sparsefront_kernels.gathered.cuda_spmm import processors
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered.pairs import pair_tables
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.registry import entries

PATTERN = {"equal": "vector_wise", "uneven": "tile_wise"}
TUNING_SAMPLES = 5


def gathered_contenders(setting: Setting, *, granularity: int, distribution: str, tune: bool) -> list[Contender]:
    """Every GPU kernel of the gathered family that takes the problem, in both layouts.

    Args:
        granularity: outputs that share their inputs.
        distribution: a name of `DISTRIBUTIONS`.
        tune: time the launches of the Hopper kernel that its model holds possible, and remember the fastest.
    """
    shape = setting.shape
    mask = DISTRIBUTIONS[distribution](shape.n, shape.k, granularity, setting.sparsity, setting.device)
    stored = GatheredFormat.from_dense(setting.weight(), mask, tile=granularity, drop_empty_outputs=False)
    weight = stored.to_dense()
    expected = setting.expected(weight)
    found = [
        _contender(setting, entry, stored, granularity, distribution, expected)
        for entry in entries()
        for layout in LAYOUTS
        if entry.family == "gathered" and entry.requires_cuda
        if entry.refusal(stored, Problem(shape.m, shape.k, shape.n, setting.dtype, setting.device, layout)) is None
    ]
    if tune and any(contender.kernel.startswith(tuning.KERNEL) for contender in found):
        tune_pairs(setting, stored, next(c for c in found if c.kernel == f"{tuning.KERNEL}_feature_major"))
    return found


def tune_pairs(setting: Setting, stored: SparseFormat, contender: Contender) -> None:
    """Time the launches worth it on this problem; each is checked before, and a wrong one is an error.

    Raises:
        RuntimeError: a launch gave a wrong product.
    """
    tables, shape, device = pair_tables(stored), setting.shape, setting.device
    m = -(-shape.m // 8) * 8  # as the op pads it
    problem = tuning.PairProblem(m, shape.k, shape.n, len(tables.pairs), len(tables.steps))
    gpu = torch.cuda.get_device_name(device)

    def time_us(launch: tuning.PairLaunch) -> float:
        tuning.remember(problem, launch, 0.0, gpu)
        measured = measure(contender, samples=TUNING_SAMPLES)
        if measured.latency is None:
            raise RuntimeError(f"{contender.kernel}: {launch} is wrong on {problem}: error {measured.relative_error}")
        return measured.latency.median_us

    best, latency_us = tuning.fastest(tuning.candidates(problem, processors(device)), time_us)
    tuning.remember(problem, best, latency_us, gpu)


def _contender(
    setting: Setting,
    entry: KernelEntry,
    stored: SparseFormat,
    granularity: int,
    distribution: str,
    expected: torch.Tensor,
) -> Contender:
    prepared = entry.prepare(stored)

    def make():
        x, own = setting.x_in(entry.layout), _copied(prepared)
        return lambda: entry.run(x, own, None)

    kept = stored.kept_inputs.numel() * granularity
    return Contender(
        family=entry.family,
        kernel=entry.name,
        pattern=PATTERN[distribution],
        granularity=granularity,
        distribution=distribution,
        layout=entry.layout,
        sparsity=1 - kept / (setting.shape.n * setting.shape.k),
        operand_bytes=stored.nbytes + setting.activation_bytes,
        weight_bytes=stored.nbytes,
        make=make,
        as_rows=lambda y: y if entry.layout == "row_major" else y.t(),
        expected=expected,
    )


def _copied(prepared: object) -> object:
    """The prepared weight with every tensor in memory of its own."""
    parts = vars(prepared)
    return type(prepared)(**{name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in parts.items()})
