"""Blocks of a network as graphs: those that are built and called alike are captured once."""

from collections.abc import Hashable, Mapping

from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.inference.fusion.call import Unfusable, call_key, call_tensors
from sparsefront.inference.fusion.capture import Captured, capture, skeleton
from sparsefront.inference.fusion.find import BlockCall
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.prepared_block import PreparedBlock, prepare_block, weights_of

Group = Hashable


class BlockCaptures:
    """Attributes:
    groups: block that was prepared -> what it has in common with others.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._captured: dict[Group, tuple[nn.Module, Captured]] = {}

    def prepare(
        self,
        net: nn.Module,
        name: str,
        call: BlockCall | None,
        formats: Mapping[str, SparseFormat],
        masks: Mapping[str, Tensor],
        parts: FusionParts = ALL_PARTS,
    ) -> PreparedBlock:
        """A block taken apart.

        Args:
            net: that holds the block; in eval mode.
            call: what it received; None where it was not called.
            formats, masks: as of `fuse_blocks`.
        Raises:
            Unfusable: it cannot be.
        """
        if call is None:
            raise Unfusable("is not called in the observed forward")
        block = net.get_submodule(name)
        key = call_key(call.args, call.kwargs)
        sizes = tuple(tuple(tensor.shape) for tensor in call_tensors(call.args, call.kwargs))
        group = (type(block), repr(block), key, sizes)
        if group not in self._captured:
            bare = skeleton(block)
            self._captured[group] = bare, capture(bare, call.args, call.kwargs)
        self.groups[name] = group
        bare, captured = self._captured[group]
        return prepare_block(block, bare, key, captured, weights_of(block, name, formats, masks), parts)
