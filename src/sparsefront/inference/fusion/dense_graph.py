"""Our own fused graph of a dense network: a candidate for the fastest dense version, so that fusion is no sparsity."""

from torch import Tensor, nn

from sparsefront.inference.fusion.fuse import fuse_dense
from sparsefront.measure.fused_linears import copy_sharing_weights
from sparsefront.measure.variants import DoesNotApply


def fused_dense_graph(net: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """A network with the same outputs whose encoder blocks are rewritten, every product dense: a `variants.Fuse`.

    Args:
        net: in eval mode, on the inputs' device; left as it is, parameters are shared where they stay in one piece.
        inputs: keyword arguments of one forward pass.
    Raises:
        DoesNotApply: no block can be rewritten.
    """
    fused = copy_sharing_weights(net)
    report = fuse_dense(fused, inputs)
    if not report.rewritten:
        raise DoesNotApply("; ".join(report.summary()) or "the network has no encoder blocks")
    return fused.eval()
