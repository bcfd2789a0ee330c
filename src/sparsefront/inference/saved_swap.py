"""A sparse network on disk: its export, and beside it the choices that were made on a GPU."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from sparsefront.export.checkpoint import read_export
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.inference.swap import swap
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.problems import observe_problems

CHOICES = "choices.json"


def save_choices(report: SwapReport, directory: Path) -> None:
    """Write the kernels and layouts of a swap beside its export."""
    report.plan.save(directory / CHOICES)


def load_sparse(
    net: nn.Module,
    directory: Path,
    inputs: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
    choices: Path | None = None,
) -> SwapReport:
    """Swap the same kernels into the net again, in place, and time nothing.

    Args:
        net: the architecture that was exported.
        directory: of the export.
        inputs: keyword arguments of the net, on `device`: a batch of the size that the choices were made for.
        choices: the file that `save_choices` wrote, where it does not lie in the directory.
    Raises:
        InvalidSetting: the export or the choices are missing or of another format version.
    """
    export, plan = read_export(directory), FusionPlan.load(choices or directory / CHOICES)
    net.load_state_dict(export.state_dict())
    net.to(device=device, dtype=dtype).eval()
    problems = observe_problems(net, dict(inputs), [*export.manifest.layers, *export.manifest.dense_layers])
    # kernels of the plan are named one by one; what is dense stays dense
    return swap(net, export, problems, KernelChoice(), device=device, dtype=dtype, inputs=inputs, plan=plan)
