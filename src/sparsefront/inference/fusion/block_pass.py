"""One run of the pass over a network: blocks are taken apart, rewritten, chosen by time, checked and put in place."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.counted import counted
from sparsefront.gpu_sharing.access import give_way
from sparsefront.inference.fusion.block_captures import BlockCaptures
from sparsefront.inference.fusion.call import Unfusable
from sparsefront.inference.fusion.chain_choice import (
    AS_THEY_ARE,
    Variant,
    chain_time_ms,
    plain_time_ms,
    representatives,
)
from sparsefront.inference.fusion.find import BlockCall, find_chains, observe_calls
from sparsefront.inference.fusion.fused_block import FusedBlock
from sparsefront.inference.fusion.fused_norm import FusedResidualNorm
from sparsefront.inference.fusion.norm_choice import NormChooser, observed_norms
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts, FusionPlan
from sparsefront.inference.fusion.prepared_block import PreparedBlock, stored_as
from sparsefront.inference.fusion.product_choice import ChosenProduct, ProductChooser
from sparsefront.inference.fusion.report import BlockReport, FusionReport, ProductReport
from sparsefront.inference.fusion.traced_calls import observe_traced_calls
from sparsefront.inference.network_modules import replace_module
from sparsefront.measure.agreement import NETWORK_ERROR_LIMIT, output_error
from sparsefront.measure.problems import LayerInput, observe_problems

log = logging.getLogger(__name__)
# Rewritten blocks have to be this much faster than blocks as they are, of which not all forms are timed here: the search for the
# fastest dense version tries PyTorch's attention on each of its backends too.
WORTH_IT = 1.02


class BlockPass:
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
        self._captures = BlockCaptures()
        self._norms = NormChooser(self.device)

    def run(self, layouts: Sequence[str], *, plain: bool) -> FusionReport:
        """Rewrite all chains.

        Args:
            layouts: of residual streams, among which time decides; the first where nothing is timed.
            plain: whether blocks may stay as they are where that is faster.
        """
        chains = find_chains(self.net)
        wanted = [name for blocks in chains.values() for name in blocks if self._is_wanted(name)]
        calls = observe_calls(self.net, wanted, self.inputs)
        traced = observe_traced_calls(self.net, wanted, self.inputs) if wanted else {}
        self._rows = {name: seen.problem.m for name, seen in self._problems(wanted).items()}
        for chain, blocks in chains.items():
            prepared = {name: found for name in blocks if name in wanted and (found := self._prepare(name, calls))}
            if not prepared:
                continue
            chosen = self._choose(chain, blocks, prepared, calls, layouts, plain)
            for name, block in chosen.blocks.items():
                if name in traced:
                    self._serve(block, name, traced[name])
                self._put(name, block, chosen.products[name], calls[name])
        for line in self.report.headlines():
            log.info(line)
        for line, count in self.report.summary().items():
            log.debug("%s: %s", counted(count, "block"), line)
        if self.chooser.timed.products:
            log.info(self.chooser.timed.summary())
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
        give_way(self.device)
        try:
            return self._captures.prepare(
                self.net, name, calls.get(name), self._rows, self.formats, self.masks, self.parts
            )
        except Unfusable as reason:
            self.report.unsupported[name] = str(reason)
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
        if not self.chooser.times_on(self.device):
            return self._variant(layouts[0], dict.fromkeys(prepared, layouts[0]), blocks, prepared)
        times: dict[str, float | None] = {}
        if len(layouts) > 1:
            # blocks whose weights are stored otherwise stand for themselves, whatever they are built like
            kinds = {name: (self._captures.groups[name], stored_as(block)) for name, block in prepared.items()}
            counts = representatives(prepared, kinds)
            few = {name: prepared[name] for name in counts}
            for layout in layouts:
                variant = self._variant(layout, dict.fromkeys(few, layout), blocks, few)
                self._norms.choose(variant.blocks, calls, self._captures.groups)
                times[layout] = chain_time_ms(variant, calls, self._captures.groups, counts, self.device)
        layout = min(layouts, key=lambda layout: math.inf if times.get(layout) is None else times[layout])
        chosen = self._variant(layout, dict.fromkeys(prepared, layout), blocks, prepared)
        self._norms.choose(chosen.blocks, calls, self._captures.groups)
        if plain and chosen.blocks:
            times[layout] = chain_time_ms(
                chosen, calls, self._captures.groups, dict.fromkeys(prepared, 1.0), self.device
            )
            modules = {name: self.net.get_submodule(name) for name in prepared}
            times[AS_THEY_ARE] = plain_time_ms(modules, calls, self._captures.groups)
            self._keep_faster_dense(chosen, times)
        if known := {name: time for name, time in times.items() if time is not None}:
            self.report.variants_ms[chain] = known
        return chosen

    def _keep_faster_dense(self, chosen: Variant, times: Mapping[str, float | None]) -> None:
        """Note that the chain stays as it is where that is faster."""
        ours, theirs = times[chosen.name], times[AS_THEY_ARE]
        if theirs is not None and (ours is None or theirs < ours * WORTH_IT):
            against = "where rewritten they cannot run" if ours is None else f"rewritten {ours:.2f} ms"
            why = f"with masked dense weights they take {theirs:.2f} ms, {against}"
            self.report.faster_dense.update(dict.fromkeys(chosen.blocks, why))

    def _variant(
        self, name: str, layout_of: Mapping[str, str], chain: Sequence[str], prepared: Mapping[str, PreparedBlock]
    ) -> Variant:
        """Blocks rewritten in these layouts; one without a kernel is left out, which is noted."""
        blocks, products = {}, {}
        for block, content in prepared.items():
            following = chain[chain.index(block) + 1] if block != chain[-1] else None
            try:
                feature_major = layout_of[block] == "feature_major"
                made = self._products(block, content, feature_major=feature_major)
                layers = [chosen.report.layers_in(block) for chosen in made]
                blocks[block] = FusedBlock(
                    content.bare,
                    {names: chosen.product for names, chosen in zip(layers, made, strict=True)},
                    content.kept,
                    feature_major=feature_major,
                    row_major_exit=following not in self._captures.groups or layout_of.get(following) == "row_major",
                    parts=self.parts,
                    norm_biases={
                        names: chosen.norm_bias
                        for names, chosen in zip(layers, made, strict=True)
                        if chosen.summed_by_norm
                    },
                )
                blocks[block].add_call(content.key, content.captured)
                products[block] = [chosen.report for chosen in made]
            except Unfusable as reason:
                self.report.unsupported[block] = str(reason)
                blocks.pop(block, None)
        return Variant(name, blocks, products)

    def _products(self, block: str, content: PreparedBlock, *, feature_major: bool) -> list[ChosenProduct]:
        kernels = {} if self.plan is None else self.plan.blocks[block].kernels
        made = []
        for spec in content.specs:
            names = "+".join(spec.weight.layers)
            if self.plan is not None and names not in kernels:
                raise Unfusable(f"has no kernel for {names} in the plan, which is of other masks or another network")
            rows = self._rows[spec.weight.layers[0]]
            made.append(self.chooser.choose(spec, rows, feature_major=feature_major, kernel=kernels.get(names)))
        return made

    def _serve(self, block: FusedBlock, name: str, call: BlockCall) -> None:
        """One more call, whose graph must be there before the network is traced."""
        try:
            if not block.serves(call.args, call.kwargs):
                block.add_call(*self._captures.another_call(self.net.get_submodule(name), name, call))
        except Unfusable as reason:  # the block says so if it is ever called so
            log.debug("block %s, as it is called while traced, %s", name, reason)

    def _put(self, name: str, block: FusedBlock, products: list[ProductReport], call: BlockCall) -> None:
        """Replace the block if it computes the same."""
        original = self.net.get_submodule(name)
        block.eval()
        with torch.no_grad():
            with observed_norms(block) as norms:
                output = block(*call.args, **call.kwargs)
            error = output_error(output, original(*call.args, **call.kwargs))
        limit = NETWORK_ERROR_LIMIT[block.products[0].format.dtype]
        if not error <= limit:
            self.report.unsupported[name] = f"computes something else when rewritten: relative error {error:.1e}"
            self.report.faster_dense.pop(name, None)
            return
        self.report.unsupported.pop(name, None)  # of a way that was not chosen
        if name not in self.report.faster_dense:
            replace_module(self.net, original, block)
            self.report.norms.update((str(norm.problem), self._norms.report(norm)) for norm in norms)
        layout = "feature_major" if block.feature_major else "row_major"
        residual_norms = sum(isinstance(norm, FusedResidualNorm) for norm in block.norms)
        launches = tuple(str(norm.launch) for norm in norms)
        self.report.blocks[name] = BlockReport(layout, products, len(block.norms), error, residual_norms, launches)
