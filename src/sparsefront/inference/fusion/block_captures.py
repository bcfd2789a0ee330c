"""Blocks of a network as graphs: those that are built and called alike are captured once."""

from collections.abc import Container, Hashable, Mapping

from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.forward_hooks import has_forward_hooks
from sparsefront.inference.fusion.attribute_reads import plain_attributes, structure
from sparsefront.inference.fusion.call import Key, Unfusable, call_key, call_tensors
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
        self._skeletons: dict[str, nn.Module] = {}
        # structure and call -> graphs, each with the values of the attributes that it depends on
        self._captured: dict[Hashable, list[tuple[Hashable, Captured]]] = {}

    def prepare(
        self,
        net: nn.Module,
        name: str,
        call: BlockCall | None,
        called: Container[str],
        formats: Mapping[str, SparseFormat],
        masks: Mapping[str, Tensor],
        parts: FusionParts = ALL_PARTS,
    ) -> PreparedBlock:
        """A block taken apart.

        Args:
            net: that holds the block; in eval mode.
            call: what it received; None where it was not called.
            called: names of the Linears of the net that the observed forward calls as modules.
            formats, masks: as of `fuse_blocks`.
        Raises:
            Unfusable: it cannot be.
        """
        if call is None:
            raise Unfusable("is not called in the observed forward")
        block = net.get_submodule(name)
        if any(has_forward_hooks(part) for part in block.modules()):
            raise Unfusable("has forward hooks, which a graph would not call")
        for layer, part in block.named_modules():
            mask = masks.get(f"{name}.{layer}")
            if isinstance(part, nn.Conv2d) and mask is not None and not mask.all():
                raise Unfusable(f"has a pruned convolution, {layer}, which its graph would run dense")
        bare = self._skeleton(name, block)
        key = call_key(call.args, call.kwargs)
        group, captured = self._graph(block, bare, key, call)
        prepared = prepare_block(block, bare, key, captured, weights_of(block, name, formats, masks), parts)
        for layer in (layer for spec in prepared.specs for layer in spec.weight.layers):
            if layer not in called:
                raise Unfusable(f"reads the weight of {layer.removeprefix(f'{name}.')} without a call of that layer")
        self.groups[name] = group
        return prepared

    def another_call(self, block: nn.Module, name: str, call: BlockCall) -> tuple[Key, Captured]:
        """The graph of one more way of calling a block that was prepared.

        Raises:
            Unfusable: it has none.
        """
        key = call_key(call.args, call.kwargs)
        return key, self._graph(block, self._skeleton(name, block), key, call)[1]

    def _skeleton(self, name: str, block: nn.Module) -> nn.Module:
        if name not in self._skeletons:
            self._skeletons[name] = skeleton(block)
        return self._skeletons[name]

    def _graph(self, block: nn.Module, bare: nn.Module, key: Hashable, call: BlockCall) -> tuple[Group, Captured]:
        """The graph of a block built alike, whose attributes have the same values as far as the graph depends on them."""
        sizes = tuple(tuple(tensor.shape) for tensor in call_tensors(call.args, call.kwargs))
        alike = structure(block), key, sizes
        graphs = self._captured.setdefault(alike, [])
        for place, (attributes, captured) in enumerate(graphs):
            if plain_attributes(block, captured.reads) == attributes:
                return (alike, place), captured
        captured = capture(bare, call.args, call.kwargs)
        graphs.append((plain_attributes(block, captured.reads), captured))
        return (alike, len(graphs) - 1), captured
