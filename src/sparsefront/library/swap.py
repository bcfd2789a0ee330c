"""Swap sparse kernels into a pruned network."""

from collections.abc import Mapping

import torch
from sparsefront_kernels import families, labeled
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.export.packed_layers import PackedWeights, pack_layers
from sparsefront.gpu_sharing.access import sharing
from sparsefront.inference.choice import MODES, KernelChoice
from sparsefront.inference.network_modules import release_formats
from sparsefront.inference.swap import swap as swap_layers
from sparsefront.inference.swap_report import SwapReport
from sparsefront.library.inputs import named_inputs_on, require_network
from sparsefront.library.masks import Masks, require_masks_of
from sparsefront.measure.agreement import floating_tensors, network_error_limit, output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.uncalled_layers import UncalledLayers


def swap(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    example_inputs: object,
    *,
    kernel: str | KernelChoice = "auto",
    packed: PackedWeights | None = None,
) -> SwapReport:
    """Replace every masked layer by the kernel that suits it best, in place; the network is then for inference only.

    On a GPU each kernel that can hold a layer's mask is compared with the fp64 product of its masked weight and timed on
    the shapes that the example inputs give it; the fastest stays, dense where that is faster. Encoder blocks may be
    rewritten as a whole. On a CPU the reference of the pattern's storage family runs, untimed.

    Args:
        net: pruned; its tensors stay on their device and in their dtypes, and it is in eval mode afterwards.
        masks: from `prune`, `recover` or `load`; or any dict of layer name -> bool mask, whose structure then decides how
            a layer is stored.
        example_inputs: what the network is called with, such as (x,), of the batch size that is wanted.
        kernel: auto, sparse (never dense), reference, none; the name of a kernel or of a storage family; or a KernelChoice.
        packed: the same layers in their storage formats, as an export holds them; None: they are packed now.
    Returns:
        which kernel runs each layer, and what stayed dense and why: `print(report)`.
    Raises:
        InvalidSetting: an argument that cannot be used; a network that returns no floating-point tensor; or a kernel asked
            for by name that runs on none of the layers.
        ValueError: a pruned weight is not zero, or a mask breaks its pattern; names the layer.
        RuntimeError: the network's outputs are not the same after the swap.
    """
    choice = kernel_choice(kernel)
    require_network(net)
    if any(isinstance(module, SparseLayer) for module in net.modules()):
        raise InvalidSetting("net", type(net).__name__, "was swapped already: give a copy of the pruned network")
    require_masks_of(net, masks)
    inputs = named_inputs_on(net, example_inputs)
    with sharing(next(iter(inputs.values())).device):
        return _swap(net, Masks.of(masks), inputs, choice, packed)


def _swap(
    net: nn.Module, known: Masks, inputs: dict[str, Tensor], choice: KernelChoice, packed: PackedWeights | None
) -> SwapReport:
    net.eval()
    limit = network_error_limit(net)
    packed = packed or _packed(net, known)
    layers = [*packed.manifest.layers, *packed.manifest.dense_layers]
    problems = observe_problems(net, inputs, layers)
    uncalled = UncalledLayers(net, [name for name in layers if name not in problems])
    with torch.inference_mode(), uncalled:
        expected = floating_tensors(net(**inputs))
    device = next(iter(inputs.values())).device
    with keys_of("kernel"):
        report = swap_layers(net, packed, problems, choice, device=device, dtype=None, inputs=inputs)
    release_formats(net)
    with torch.inference_mode():
        error = output_error(net(**inputs), expected)
    if not error <= limit:
        raise RuntimeError(
            f"the swapped network disagrees with the masked one: relative error {error:.1e}, at most "
            f"{limit:.0e} is rounding; nothing is measured"
        )
    return report.counting(uncalled.problems)


def kernel_choice(kernel: str | KernelChoice) -> KernelChoice:
    """What argument `kernel` means.

    Raises:
        InvalidSetting: a name that nobody knows.
    """
    if isinstance(kernel, KernelChoice):
        return kernel
    offered = ", ".join((*MODES, *families()))
    unknown = InvalidSetting("kernel", kernel, f"is one of {offered}, the name of a kernel, or a KernelChoice")
    if not isinstance(kernel, str):
        raise unknown
    if kernel in MODES:
        return KernelChoice(kernel)
    if kernel in families():
        return KernelChoice("sparse", family=kernel)
    try:
        labeled(kernel)
    except ValueError:
        raise unknown from None
    return KernelChoice("sparse", name=kernel)


def _packed(net: nn.Module, masks: Masks) -> PackedWeights:
    pruning, layout = masks.pruning, masks.layout
    return pack_layers(
        net,
        masks,
        pattern=None if pruning is None else pruning.pattern,
        sparsity=masks.sparsity if pruning is None else pruning.sparsity,
        permutations=layout.permutations,
        sparsities=layout.sparsities,
        patterns=layout.patterns,
        dense_reasons=masks.ignored,
    )
