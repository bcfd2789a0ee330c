"""How long the products of encoder blocks take under other masks: for a search, which builds no network for each of them."""

from collections.abc import Hashable, Mapping
from typing import Any

from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_captures import BlockCaptures
from sparsefront.inference.fusion.call import Unfusable
from sparsefront.inference.fusion.find import find_chains, observe_calls
from sparsefront.inference.fusion.product_choice import ProductChooser
from sparsefront.inference.fusion.report import ProductReport
from sparsefront.measure.problems import observe_problems

Layers = tuple[str, ...]


class ProductTimes:
    """Times products as the pass over blocks would build them: joined, with their epilogues, in the layouts of their place.

    Args:
        net: with dense weights, in eval mode, on the device and in the dtype that are measured; stays as it is.
        inputs: keyword arguments of the net, the batch that is measured.
        choice: which kernels may run.
    Attributes:
        chains: container -> those of its blocks that can be rewritten, in order.
        products: block -> the Linears of each of its products where all are dense, by their names in the network.
    """

    def __init__(self, net: nn.Module, inputs: Mapping[str, Any], choice: KernelChoice) -> None:
        self._net, self._choice = net, choice
        self._captures = BlockCaptures()
        self._chooser = ProductChooser(choice, on_cpu=True)
        found = find_chains(net)
        blocks = [name for names in found.values() for name in names]
        self._calls = observe_calls(net, blocks, inputs)
        linears = [
            f"{block}.{name}"
            for block in blocks
            for name, module in net.get_submodule(block).named_modules()
            if isinstance(module, nn.Linear)
        ]
        self._rows = {name: seen.problem.m for name, seen in observe_problems(net, dict(inputs), linears).items()}
        self.products: dict[str, list[Layers]] = {}
        for name in blocks:
            try:
                prepared = self._captures.prepare(net, name, self._calls.get(name), self._rows, {}, {})
            except Unfusable:
                continue
            self.products[name] = [spec.weight.layers for spec in prepared.specs]
        rewritten = {chain: [name for name in names if name in self.products] for chain, names in found.items()}
        self.chains = {chain: names for chain, names in rewritten.items() if names}

    def group(self, block: str) -> Hashable:
        """What equal blocks have in common."""
        return self._captures.groups[block]

    def of(
        self, block: str, formats: Mapping[str, SparseFormat], masks: Mapping[str, Tensor], layout: str
    ) -> list[ProductReport]:
        """The fastest kernel of each product of a block, with its time.

        Args:
            formats, masks: of its pruned Linears, as of `fuse_blocks`; the others are dense.
            layout: of the residual stream.
        Raises:
            Unfusable: no kernel is right, or the block cannot be rewritten with these masks.
        """
        prepared = self._captures.prepare(self._net, block, self._calls[block], self._rows, formats, masks)
        feature_major = layout == "feature_major"
        return [
            self._chooser.choose(spec, self._rows[spec.weight.layers[0]], feature_major=feature_major).report
            for spec in prepared.specs
        ]
