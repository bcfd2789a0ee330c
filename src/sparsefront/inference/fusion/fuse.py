"""Rewrite the repeated blocks of a network, in place: the entry of this folder."""

from collections.abc import Mapping
from typing import Any

from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.compiler_messages import shorten_compiler_messages
from sparsefront.inference.fusion.block_pass import BlockPass
from sparsefront.inference.fusion.plan import ALL_PARTS, LAYOUTS, FusionParts, FusionPlan
from sparsefront.inference.fusion.product_choice import ProductChooser
from sparsefront.inference.fusion.report import FusionReport
from sparsefront.inference.fusion.timed_products import TimedProducts
from sparsefront.measure.fused_linears import copy_sharing_weights
from sparsefront.measure.variants import DoesNotApply


def fuse_blocks(
    net: nn.Module,
    formats: Mapping[str, SparseFormat],
    masks: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    choice: KernelChoice,
    *,
    plan: FusionPlan | None = None,
    parts: FusionParts = ALL_PARTS,
    timed: TimedProducts | None = None,
) -> FusionReport:
    """Give every encoder block of the net fused products in the layout that is fastest, in place.

    A block (an element of a ModuleList or Sequential that holds Linears) is exported to a graph of operators and
    rewritten: query, key and value are one product; activation, bias and residual belong to the product before them; the
    residual stream is feature-major; hidden features that are pruned vanish. The block's forward keeps its signature.
    Blocks that cannot be exported or rewritten stay as they are, with the reason in the report.

    On a CUDA device products are checked and timed, and per chain of blocks the fastest way is kept that `choice` allows, the
    blocks as they are among them where dense is allowed. On a CPU references run, feature-major, and nothing is timed.

    Args:
        net: in eval mode, on the device and in the dtype that are measured; its pruned weights are already zero.
        formats: pruned Linear -> its weight in the pattern's canonical format, on any device and in any float dtype; layers
            that are not named are dense.
        masks: the same layers -> bool [N, K], True = keep.
        inputs: keyword arguments of the net: the batch that is measured.
        choice: which kernels may run.
        plan: choices of an earlier call (`FusionReport.plan`): nothing is timed, kernels and layouts are those.
        parts: what may be done; a plan is used with those that it was made with.
        timed: times of earlier calls on this device, to which those of this one are added.
    """
    chooser = ProductChooser(choice, timed=TimedProducts() if timed is None else timed)
    task = BlockPass(net, formats, masks, inputs, chooser, plan, parts)
    return task.run(parts.layouts, plain=choice.dense_allowed)


def fuse_dense(
    net: nn.Module, inputs: Mapping[str, Any], *, layout: str | None = None, plan: FusionPlan | None = None
) -> FusionReport:
    """The same rewriting with every product dense, through cuBLAS: the baseline that shows what fusion alone gives.

    Args:
        net, inputs, plan: as in `fuse_blocks`.
        layout: "feature_major" or "row_major" for the residual stream; None: per chain the faster one (on a CPU
            feature-major).
    Raises:
        InvalidSetting: no such layout.
    """
    if layout not in (None, *LAYOUTS):
        raise InvalidSetting("layout", layout, f"is one of {', '.join(LAYOUTS)}, or null for the faster one")
    task = BlockPass(net, {}, {}, inputs, ProductChooser(KernelChoice("auto"), dense=True), plan)
    return task.run(LAYOUTS if layout is None else (layout,), plain=False)


def fused_dense_graph(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """A network with the same outputs whose encoder blocks are rewritten, every product dense: a `variants.Fuse`.

    Args:
        net: in eval mode, on the inputs' device; left as it is, parameters are shared where they stay in one piece.
        inputs: keyword arguments of one forward pass.
    Raises:
        DoesNotApply: no block can be rewritten.
    """
    shorten_compiler_messages()
    fused = copy_sharing_weights(net)
    report = fuse_dense(fused, inputs)
    if not report.rewritten:
        raise DoesNotApply("; ".join(report.summary()) or "the network has no encoder blocks")
    return fused.eval()
