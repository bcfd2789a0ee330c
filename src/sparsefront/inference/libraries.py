"""The CUDA libraries that a network's layers may use, built side by side before any kernel is checked or timed."""

from collections.abc import Hashable, Mapping
from functools import partial

import torch
from sparsefront_kernels import KernelEntry, cuda_library
from sparsefront_kernels.norm import layer_norm, rows
from sparsefront_kernels.problem import kernel_and_layout
from torch import Tensor, nn

from sparsefront.export.packed_layers import PackedWeights
from sparsefront.gpu import release_gpu
from sparsefront.inference.autotune import find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.calls import find_chains
from sparsefront.inference.fusion.fused_product import sparse_candidates
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.inference.precision import Precision
from sparsefront.measure.problems import LayerInput


def build_libraries(
    net: nn.Module,
    export: PackedWeights,
    problems: Mapping[str, LayerInput],
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
) -> None:
    """Build the missing libraries of all kernels that `swap_layers` may try with these arguments, on a GPU.

    Those that cannot be built are logged, and their kernels rejected for that reason.
    """
    devices = {received.problem.device for received in problems.values() if received.problem.device.type == "cuda"}
    for device in devices if not choice.swaps_nothing else ():
        names = find_libraries(net, export, problems, choice, plan, precision)
        with release_gpu(device):  # others may time meanwhile
            cuda_library.build_missing(sorted(names))


def find_libraries(
    net: nn.Module,
    export: PackedWeights,
    problems: Mapping[str, LayerInput],
    choice: KernelChoice,
    plan: FusionPlan | None,
    precision: Precision,
) -> set[str]:
    """The libraries that the checks of all kernels ask for, with one check for all layers of the same shape and storage."""
    blocks = tuple(f"{name}." for names in find_chains(net).values() for name in names) if choice.fuse else ()
    planned = None if plan is None else _kernels_of(plan)
    checked: dict[Hashable, bool] = {}  # -> whether it is in a block
    with cuda_library.recording_needs() as names:
        for name, record in export.manifest.layers.items():
            layer, received = net.get_submodule(name), problems.get(name)
            if record.family == "dense" or record.density == 1 or received is None:
                continue
            problem = received.problem
            in_block = isinstance(layer, nn.Linear) and name.startswith(blocks)
            key = (in_block, problem, record.family, repr(record.parameters))
            if key in checked:
                continue
            checked[key] = in_block
            weight: Tensor = layer.weight  # type: ignore[assignment]  # Linears and convolutions are pruned
            stored, mask = export.format(name).to(device=weight.device, dtype=weight.dtype), export.masks[name]
            if isinstance(layer, nn.Linear) and in_block:
                product = ProductWeight.of(name, layer, stored, mask)
                sparse_candidates(product, problem, choice, partial(_why_not, planned), precision)
            else:
                wants = partial(_wants, choice, planned, stored.family, problem.device)
                find_candidates(stored, mask.to(weight.device), problem, wants, precision.kernels())
    return names | {layer_norm.LIBRARY, rows.LIBRARY} if names and any(checked.values()) else names


def _kernels_of(plan: FusionPlan) -> set[str]:
    labels = {*plan.layers.values(), *(label for block in plan.blocks.values() for label in block.kernels.values())}
    return {kernel_and_layout(label)[0] for label in labels}


def _why_not(planned: set[str] | None, label: str) -> str | None:
    return None if planned is None or kernel_and_layout(label)[0] in planned else "it is not in the plan"


def _wants(
    choice: KernelChoice, planned: set[str] | None, family: str, device: torch.device, kernel: KernelEntry, layout: str
) -> bool:
    return choice.wants(kernel, layout, family, device) and (planned is None or kernel.name in planned)
