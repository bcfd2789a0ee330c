"""Rewrite the repeated blocks of a network, in place: the entry of this folder."""

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.inference.agreement import NETWORK_ERROR_LIMIT, output_error
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.call import call_key, call_tensors
from sparsefront.inference.fusion.capture import Captured, capture, skeleton
from sparsefront.inference.fusion.chain_choice import AS_THEY_ARE, Variant, chain_time_ms, plain_time_ms
from sparsefront.inference.fusion.find import BlockCall, find_chains, observe_calls
from sparsefront.inference.fusion.fused_block import FusedBlock
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.parts import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.plan import LAYOUTS, FusionPlan
from sparsefront.inference.fusion.prepared_block import PreparedBlock, prepare_block, weights_of
from sparsefront.inference.fusion.product_choice import ProductChooser
from sparsefront.inference.fusion.report import BlockReport, FusionReport, ProductReport
from sparsefront.inference.fusion.unfusable import Unfusable
from sparsefront.inference.problems import LayerInput, observe_problems
from sparsefront.inference.replace import replace_module

log = logging.getLogger(__name__)
Group = Hashable


def fuse_blocks(
    net: nn.Module,
    formats: Mapping[str, SparseFormat],
    masks: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    choice: KernelChoice,
    *,
    plan: FusionPlan | None = None,
    parts: FusionParts = ALL_PARTS,
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
    """
    task = _Pass(net, formats, masks, inputs, ProductChooser(choice), plan, parts)
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
    task = _Pass(net, {}, {}, inputs, ProductChooser(KernelChoice("auto"), dense=True), plan)
    return task.run(LAYOUTS if layout is None else (layout,), plain=False)


class _Pass:
    """One run over a network."""

    def __init__(
        self,
        net: nn.Module,
        formats: Mapping[str, SparseFormat],
        masks: Mapping[str, Tensor],
        inputs: Mapping[str, Any],
        chooser: ProductChooser,
        plan: FusionPlan | None,
        parts: FusionParts = ALL_PARTS,
    ) -> None:
        self.net, self.formats, self.masks, self.inputs = net, formats, masks, inputs
        self.chooser, self.plan, self.parts = chooser, plan, parts
        self.device = next(net.parameters()).device
        self.report = FusionReport()
        self._captured: dict[Group, tuple[nn.Module, Captured]] = {}
        # block -> what it has in common with others: they are captured and timed once
        self._groups: dict[str, Group] = {}

    def run(self, layouts: Sequence[str], *, plain: bool) -> FusionReport:
        """Rewrite all chains.

        Args:
            layouts: of residual streams, among which time decides; the first where nothing is timed.
            plain: whether blocks may stay as they are where that is faster.
        """
        chains = find_chains(self.net)
        wanted = [name for blocks in chains.values() for name in blocks if self._is_wanted(name)]
        calls = observe_calls(self.net, wanted, self.inputs)
        self._rows = {name: seen.problem.m for name, seen in self._problems(wanted).items()}
        for chain, blocks in chains.items():
            prepared = {name: found for name in blocks if name in wanted and (found := self._prepare(name, calls))}
            if not prepared:
                continue
            chosen = self._choose(chain, blocks, prepared, calls, layouts, plain)
            for name, block in chosen.blocks.items():
                self._put(name, block, chosen.products[name], calls[name])
        for line, count in self.report.summary().items():
            log.info("%d blocks: %s", count, line)
        return self.report

    def _is_wanted(self, name: str) -> bool:
        if self.plan is not None:
            return name in self.plan.blocks
        return self.chooser.dense or any(layer.startswith(f"{name}.") for layer in self.formats)

    def _problems(self, blocks: Sequence[str]) -> dict[str, LayerInput]:
        layers = [
            f"{name}.{layer}"
            for name in blocks
            for layer, module in self.net.get_submodule(name).named_modules()
            if isinstance(module, nn.Linear)
        ]
        return observe_problems(self.net, dict(self.inputs), layers)

    def _prepare(self, name: str, calls: Mapping[str, BlockCall]) -> PreparedBlock | None:
        """The block taken apart; None where it stays as it is, which is noted."""
        block, call = self.net.get_submodule(name), calls.get(name)
        try:
            if call is None:
                raise Unfusable("is not called in the observed forward")
            key = call_key(call.args, call.kwargs)
            sizes = tuple(tuple(tensor.shape) for tensor in call_tensors(call.args, call.kwargs))
            group = (type(block), repr(block), key, sizes)
            if group not in self._captured:
                bare = skeleton(block)
                self._captured[group] = bare, capture(bare, call.args, call.kwargs)
            self._groups[name] = group
            weights = weights_of(block, name, self.formats, self.masks)
            bare, captured = self._captured[group]
            return prepare_block(block, bare, key, captured, weights, self.parts)
        except Unfusable as reason:
            self.report.refusals[name] = str(reason)
            return None

    def _choose(
        self,
        chain: str,
        blocks: Sequence[str],
        prepared: Mapping[str, PreparedBlock],
        calls: Mapping[str, BlockCall],
        layouts: Sequence[str],
        plain: bool,
    ) -> Variant:
        """The way of this chain, its fastest rewriting where its blocks stay as they are, which is noted."""
        if self.plan is not None:
            layout_of = {name: self.plan.blocks[name].layout for name in prepared}
            return self._variant("planned", layout_of, blocks, prepared)
        timed = self.device.type == "cuda" and self.chooser.choice.mode != "reference"
        variants = [
            self._variant(layout, dict.fromkeys(prepared, layout), blocks, prepared)
            for layout in (layouts if timed else layouts[:1])
        ]
        most = max(len(variant.blocks) for variant in variants)
        variants = [variant for variant in variants if len(variant.blocks) == most]
        if not timed or not most or (len(variants) == 1 and not plain):
            return variants[0]
        times = {variant.name: chain_time_ms(variant, calls, self._groups) for variant in variants}
        if plain:
            modules = {name: self.net.get_submodule(name) for name in variants[0].blocks}
            times[AS_THEY_ARE] = plain_time_ms(modules, calls, self._groups)
        known = {name: time for name, time in times.items() if time is not None}
        self.report.variants_ms[chain] = dict(known)
        best = min(known, key=known.__getitem__, default=variants[0].name)
        if best == AS_THEY_ARE:
            others = ", ".join(f"{name} {time:.2f} ms" for name, time in known.items() if name != best)
            why = f"with masked dense weights they take {known[best]:.2f} ms, against {others}"
            self.report.faster_dense.update(dict.fromkeys(variants[0].blocks, why))
            del known[AS_THEY_ARE]
            best = min(known, key=known.__getitem__, default=variants[0].name)
        return next(variant for variant in variants if variant.name == best)

    def _variant(
        self, name: str, layout_of: Mapping[str, str], chain: Sequence[str], prepared: Mapping[str, PreparedBlock]
    ) -> Variant:
        """All blocks rewritten in these layouts; one without a kernel is left out, which is noted."""
        parts = {}
        for block, content in prepared.items():
            try:
                parts[block] = self._products(block, content, feature_major=layout_of[block] == "feature_major")
            except Unfusable as reason:
                self.report.refusals[block] = str(reason)
        fused = {}
        for block, products in parts.items():
            following = chain[chain.index(block) + 1] if block != chain[-1] else None
            stays = following in parts and layout_of[following] == "feature_major"
            fused[block] = FusedBlock(
                prepared[block].bare,
                {product.layers_in(block): module for module, product in products},
                prepared[block].kept,
                feature_major=layout_of[block] == "feature_major",
                row_major_exit=not stays,
                parts=self.parts,
            )
            fused[block].add_call(prepared[block].key, prepared[block].captured)
        return Variant(name, fused, {block: [product for _, product in products] for block, products in parts.items()})

    def _products(
        self, block: str, content: PreparedBlock, *, feature_major: bool
    ) -> list[tuple[FusedProduct, ProductReport]]:
        kernels = {} if self.plan is None else self.plan.blocks[block].kernels
        made = []
        for spec in content.specs:
            names = "+".join(spec.weight.layers)
            if self.plan is not None and names not in kernels:
                raise Unfusable(f"has no kernel for {names} in the plan, which is of other masks or another network")
            rows = self._rows[spec.weight.layers[0]]
            made.append(self.chooser.choose(spec, rows, feature_major=feature_major, kernel=kernels.get(names)))
        return made

    def _put(self, name: str, block: FusedBlock, products: list[ProductReport], call: BlockCall) -> None:
        """Replace the block if it computes the same."""
        original = self.net.get_submodule(name)
        block.eval()
        with torch.no_grad():
            error = output_error(block(*call.args, **call.kwargs), original(*call.args, **call.kwargs))
        limit = NETWORK_ERROR_LIMIT[block.products[0].format.dtype]
        if not error <= limit:
            self.report.refusals[name] = f"computes something else when rewritten: relative error {error:.1e}"
            self.report.faster_dense.pop(name, None)
            return
        self.report.refusals.pop(name, None)  # of a way that was not chosen
        if name not in self.report.faster_dense:
            replace_module(self.net, original, block)
        layout = "feature_major" if block.feature_major else "row_major"
        self.report.blocks[name] = BlockReport(layout, products, block.norms, error)
