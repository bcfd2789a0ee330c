"""The fusion pass: rewrite the repeated blocks of a network in place, as the fastest variant of each chain, checked."""

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import yield_gpu
from sparsefront.inference.choice import KernelChoice, is_low
from sparsefront.inference.fusion.attention import ComputedOutputs
from sparsefront.inference.fusion.block_times import (
    Variant,
    chain_time_ms,
    faster_mode_ms,
    plain_time_ms,
    representatives,
)
from sparsefront.inference.fusion.calls import (
    BlockCall,
    Unfusable,
    find_chains,
    observe_blocks,
    observe_cached_calls,
    observe_traced_calls,
)
from sparsefront.inference.fusion.fused import FusedBlock, OriginalCode
from sparsefront.inference.fusion.norms import NormChooser, observe_norms
from sparsefront.inference.fusion.placement import FusedResidualNorm, FusedRowNorm
from sparsefront.inference.fusion.plan import (
    ALL_PARTS,
    LAYOUTS,
    BlockReport,
    FusionParts,
    FusionPlan,
    FusionReport,
    ProductReport,
)
from sparsefront.inference.fusion.prepared_block import BlockCaptures, PreparedBlock, storage_key
from sparsefront.inference.fusion.product_choice import ChosenProduct, ProductChooser, TimedProducts
from sparsefront.inference.layers import linear_inputs, quantize_linears
from sparsefront.inference.network_modules import replace_module, shorten_compiler_messages
from sparsefront.inference.precision import IN_16_BITS, Precision, emulation, network_dtype, require_supported
from sparsefront.measure.correctness import (
    LOW_PRECISION_ERROR_LIMIT,
    NETWORK_ERROR_LIMIT,
    has_low_precision,
    output_error,
)
from sparsefront.measure.search_time import BLOCK, LAYER, current, too_late
from sparsefront.measure.variants import DoesNotApply, copy_sharing_weights
from sparsefront.models.linears import as_linears
from sparsefront.progress import counted

# Variants of a chain of blocks: unchanged, with fused row-major products, or feature-major; chosen by the time of whole blocks.

log = logging.getLogger(__name__)
UNCHANGED = "as_they_are"
LAYER_NORM = torch.ops.aten.layer_norm.default


@dataclass(frozen=True)
class Rewriting:
    """How to rewrite the blocks of a chain.

    Args:
        layout: of the residual stream.
        low: whether to prefer low-precision kernels; else each product runs its fastest kernel of any precision.
        name: in the report.
        hidden_bytes: as in `FusedBlock`.
        attention: whether our kernel computes attention, in this layout, where it can.
    """

    layout: str
    low: bool
    name: str
    hidden_bytes: int | None = None
    attention: bool = False


# Rewritten blocks must be this much faster than unchanged ones, since not all variants of these are timed here: the search for
# the fastest dense version also tries each attention backend.
WORTH_IT = 1.02
TURNS = 5  # timings of two rewritings, in turn
GATED = 2  # Linears of a gated activation, which are joined to one product


def l2_bytes(device: torch.device) -> int:
    """Size of a GPU's L2 cache; 0 on a CPU."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0


def fastest_rewriting(
    rewritings: Sequence[Rewriting],
    times_ms: Mapping[str, float | None],
    time_again: Callable[[Rewriting], float | None],
) -> Rewriting:
    """The fastest rewriting; or the first, if it is in the requested low precision and the fastest is not WORTH_IT faster in
    each of TURNS timings: with most kernels in common, noise would decide, and differently in each run.

    Args:
        times_ms: name of a rewriting -> its first timing; None or absent where it cannot run or was not timed.
        time_again: gives another timing, or None.
    """

    def known(time_ms: float | None) -> float:
        return math.inf if time_ms is None else time_ms

    first, fastest = rewritings[0], min(rewritings, key=lambda one: known(times_ms.get(one.name)))
    if not first.low or fastest is first or times_ms.get(first.name) is None:
        return fastest
    low_ms, other_ms = known(times_ms[first.name]), known(times_ms[fastest.name])
    for _ in range(TURNS - 1):
        if other_ms * WORTH_IT >= low_ms:
            break
        low_ms, other_ms = known(time_again(first)), known(time_again(fastest))
    return fastest if other_ms * WORTH_IT < low_ms else first


class BlockPass:
    """One fusion pass over a network."""

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
        self._cached_faster: dict[Hashable, bool] = {}

    def run(self, layouts: Sequence[str], *, plain: bool) -> FusionReport:
        """Rewrite all chains.

        Args:
            layouts: of residual streams to choose from by time; the first if nothing is timed.
            plain: whether blocks may stay unchanged if that is faster.
        """
        chains = find_chains(self.net)
        targets = [name for blocks in chains.values() for name in blocks if self._is_wanted(name)]
        calls, self._rows = observe_blocks(self.net, targets, self.inputs)
        traced = observe_traced_calls(self.net, targets, self.inputs) if targets else {}
        cached = observe_cached_calls(self.net, targets, self.inputs) if targets else {}
        for chain, blocks in chains.items():
            prepared = {
                name: candidate for name in blocks if name in targets and (candidate := self._prepare(name, calls))
            }
            if not prepared:
                continue
            chosen = self._choose(chain, blocks, prepared, calls, layouts, plain)
            for name, block in chosen.blocks.items():
                if name in traced:
                    self._add_traced_call(block, name, traced[name])
                if name in cached:
                    self._add_cached_call(block, name, cached[name])
                self._replace(name, block, chosen.products[name], calls[name])
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
        every = self.chooser.dense or self.chooser.precision.is_low
        return every or any(layer.startswith(f"{name}.") for layer in self.formats)

    def _prepare(self, name: str, calls: Mapping[str, BlockCall]) -> PreparedBlock | None:
        """Prepare a block; None, with the reason in the report, if it stays unchanged."""
        yield_gpu(self.device)
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
        """The fastest rewriting of this chain; if unchanged blocks are faster, `faster_dense` of the report has them."""
        if self.plan is not None:
            plans = {name: self.plan.blocks[name] for name in prepared}
            of_plans = {
                name: Rewriting(one.layout, False, "planned", one.hidden_bytes, one.attention)
                for name, one in plans.items()
            }
            return self._variant("planned", of_plans, blocks, prepared)
        layouts = _layouts_of(prepared.values(), layouts)
        rewritings = self._rewritings(layouts)
        if not self.chooser.times_on(self.device):
            return self._rewrite(rewritings[0], blocks, prepared)
        times: dict[str, float | None] = {}
        rewriting = rewritings[0]
        hidden_bytes = self._hidden_bytes(prepared.values())
        has_attention = any(block.has_attention for block in prepared.values())
        if len(rewritings) > 1 or hidden_bytes is not None or has_attention:
            # blocks with other storage are separate groups, even with the same structure
            kinds = {name: (self._captures.groups[name], storage_key(block)) for name, block in prepared.items()}
            counts = representatives(prepared, kinds)
            few = {name: prepared[name] for name in counts}
            variants: dict[str, Variant] = {}

            def time_again(rewriting: Rewriting) -> float | None:
                if not self.chooser.dense and too_late(f"{chain} as {rewriting.name}", BLOCK) is not None:
                    return None
                return chain_time_ms(variants[rewriting.name], calls, self._captures.groups, counts, self.device)

            def time_first(rewriting: Rewriting) -> None:
                compared = any(time is not None for time in times.values())
                if compared and not self.chooser.dense and too_late(f"{chain} as {rewriting.name}", LAYER) is not None:
                    return
                variant = variants[rewriting.name] = self._rewrite(rewriting, blocks, few)
                self._norms.choose(variant.blocks, calls, self._captures.groups)
                times[rewriting.name] = chain_time_ms(variant, calls, self._captures.groups, counts, self.device)

            def time_other(fastest: Rewriting, other: Rewriting) -> Rewriting:
                """The other one if it is clearly faster than the fastest so far."""
                time_first(other)
                known_ms, other_ms = times.get(fastest.name), times.get(other.name)
                return (
                    other if other_ms is not None and (known_ms is None or other_ms * WORTH_IT < known_ms) else fastest
                )

            for rewriting in rewritings:
                time_first(rewriting)
            rewriting = fastest_rewriting(rewritings, times, time_again)
            others = _with_own_attention(rewriting, layouts) if has_attention else []
            for other in others:
                rewriting = time_other(rewriting, other)
            if hidden_bytes is not None:
                in_chunks = replace(rewriting, name=f"{rewriting.name}_in_chunks", hidden_bytes=hidden_bytes)
                rewriting = time_other(rewriting, in_chunks)
        chosen = self._rewrite(rewriting, blocks, prepared)
        self._norms.choose(chosen.blocks, calls, self._captures.groups)
        if plain and chosen.blocks:
            counts = dict.fromkeys(prepared, 1.0)
            times[rewriting.name] = chain_time_ms(chosen, calls, self._captures.groups, counts, self.device)
            modules = {name: self.net.get_submodule(name) for name in prepared}
            times[UNCHANGED] = plain_time_ms(modules, calls, self._captures.groups)
            self._keep_faster_dense(chosen, times)
        known = {name: time for name, time in times.items() if time is not None}
        if known:
            self.report.variants_ms[chain] = known
        return chosen

    def _rewritings(self, layouts: Sequence[str]) -> list[Rewriting]:
        """Rewritings to choose from by time; the first if nothing is timed. Low precision is row-major; a dense baseline in low
        precision uses it wherever possible.
        """
        rewritings = [Rewriting(layout, False, layout) for layout in layouts]
        precision = self.chooser.precision
        if not precision.is_low or "row_major" not in layouts:
            return rewritings
        low = Rewriting("row_major", True, f"row_major_{precision.name}")
        forced = self.chooser.choice.name
        return [low] if self.chooser.dense or (forced is not None and is_low(forced)) else [low, *rewritings]

    def _rewrite(self, rewriting: Rewriting, chain: Sequence[str], prepared: Mapping[str, PreparedBlock]) -> Variant:
        return self._variant(rewriting.name, dict.fromkeys(prepared, rewriting), chain, prepared)

    def _hidden_bytes(self, blocks: Iterable[PreparedBlock]) -> int | None:
        """Hidden features for which half of L2 has room; None where all of a block's fit in."""
        half = l2_bytes(self.device) // 2
        specs = (spec for block in blocks for spec in block.specs)
        specs = (spec for spec in specs if spec.activation != "none" or len(spec.weight.layers) == GATED)
        sizes = (self._rows[spec.weight.layers[0]] * spec.weight.weight[:, :1].nbytes for spec in specs)
        return half if half and max(sizes, default=0) > half else None

    def _keep_faster_dense(self, chosen: Variant, times: Mapping[str, float | None]) -> None:
        """Record that the chain stays unchanged if that is faster."""
        ours, theirs = times[chosen.name], times[UNCHANGED]
        if theirs is not None and (ours is None or theirs < ours * WORTH_IT):
            against = "where rewritten they cannot run" if ours is None else f"rewritten {ours:.2f} ms"
            why = f"with masked dense weights they take {theirs:.2f} ms, {against}"
            self.report.faster_dense.update(dict.fromkeys(chosen.blocks, why))

    def _variant(
        self,
        name: str,
        rewriting_of: Mapping[str, Rewriting],
        chain: Sequence[str],
        prepared: Mapping[str, PreparedBlock],
    ) -> Variant:
        """Rewrite blocks; one without a kernel is skipped, with the reason in the report."""
        blocks, products = {}, {}
        for block, content in prepared.items():
            following = chain[chain.index(block) + 1] if block != chain[-1] else None
            try:
                rewriting, next_one = rewriting_of[block], rewriting_of.get(following or "")
                feature_major = rewriting.layout == "feature_major"
                attention = rewriting.attention and content.has_attention
                computed: dict[tuple[str, ...], ComputedOutputs] = {}
                if attention and feature_major:
                    content, computed = content.around_attention(block, compact=self.parts.compact)
                made = self._products(block, content, feature_major=feature_major, low=rewriting.low)
                layers = [chosen.report.layers_in(block) for chosen in made]
                blocks[block] = FusedBlock(
                    content.bare,
                    {names: chosen.product for names, chosen in zip(layers, made, strict=True)},
                    content.kept,
                    feature_major=feature_major,
                    row_major_exit=following not in self._captures.groups
                    or (next_one is not None and next_one.layout == "row_major"),
                    hidden_bytes=rewriting.hidden_bytes,
                    parts=self.parts,
                    norm_biases={
                        names: chosen.norm_bias
                        for names, chosen in zip(layers, made, strict=True)
                        if chosen.norm_adds_residual
                    },
                    attention=attention,
                    computed=computed,
                )
                blocks[block].add_call(content.key, content.captured)
                products[block] = [chosen.report for chosen in made]
            except Unfusable as reason:
                self.report.unsupported[block] = str(reason)
                blocks.pop(block, None)
        return Variant(name, blocks, products)

    def _products(self, block: str, content: PreparedBlock, *, feature_major: bool, low: bool) -> list[ChosenProduct]:
        kernels = {} if self.plan is None else self.plan.blocks[block].kernels
        made = []
        for spec in content.specs:
            names = "+".join(spec.weight.layers)
            if self.plan is not None and names not in kernels:
                raise Unfusable(f"has no kernel for {names} in the plan, which is of other masks or another network")
            rows = self._rows[spec.weight.layers[0]]
            planned = kernels.get(names)
            made.append(self.chooser.choose(spec, rows, feature_major=feature_major, kernel=planned, low=low))
        return made

    def _add_traced_call(self, block: FusedBlock, name: str, call: BlockCall) -> None:
        """Add a graph for one more kind of call, which must exist before the network is traced."""
        try:
            if not block.serves(call.args, call.kwargs):
                block.add_call(*self._captures.another_call(self.net.get_submodule(name), name, call))
        except Unfusable as reason:  # the block reports it when it is called so
            log.debug("block %s, as it is called while traced, %s", name, reason)

    def _add_cached_call(self, block: FusedBlock, name: str, call: BlockCall) -> None:
        """Add a graph for one token with a static cache if it gives the block's output and is not slower than the original code
        around the products, timed once for equal blocks.
        """
        original, group = self.net.get_submodule(name), self._captures.groups[name]
        try:
            if not block.serves(call.args, call.kwargs):
                block.add_call(*self._captures.another_call(original, name, call))
            with torch.no_grad():
                outputs = [module.eval()(*call.args, **call.kwargs) for module in (block, original)]
            block.fuses_cached = output_error(*outputs) <= _error_limit(block)
        except Exception as reason:  # a graph may fail in any way on this device
            why = str(reason) if isinstance(reason, Unfusable) else failure_reason(reason)
            log.info("with a static cache the code of block %s runs around its products: it %s", name, why)
            block.fuses_cached = False
        if block.fuses_cached and self.plan is not None:
            block.fuses_cached = self.plan.blocks[name].fuses_cached
        elif block.fuses_cached and self.chooser.times_on(self.device):
            if group not in self._cached_faster:
                forms_ms = [faster_mode_ms(form, call) for form in (block, OriginalCode(block))]
                times = [math.inf if time is None else time for time in forms_ms]
                self._cached_faster[group] = times == sorted(times)
            block.fuses_cached = self._cached_faster[group]

    def _replace(self, name: str, block: FusedBlock, products: list[ProductReport], call: BlockCall) -> None:
        """Replace the block if its output is the same."""
        original = self.net.get_submodule(name)
        block.eval()
        with torch.no_grad():
            try:
                with observe_norms(block) as norms:
                    output = block(*call.args, **call.kwargs)
            except Exception as raised:  # the graph was captured on the meta device and may fail on this one
                self.report.unsupported[name] = f"cannot run when rewritten: {failure_reason(raised)}"
                self.report.faster_dense.pop(name, None)
                return
            error = quantized = output_error(output, original(*call.args, **call.kwargs))
            low = has_low_precision(block)
            if low:
                with emulation(block):
                    error = output_error(output, block(*call.args, **call.kwargs))
        dtype = torch.bfloat16 if low else next(iter(block.product_of.values())).format.dtype
        if not error <= NETWORK_ERROR_LIMIT[dtype] or (low and not quantized <= LOW_PRECISION_ERROR_LIMIT):
            self.report.unsupported[name] = f"computes something else when rewritten: relative error {error:.1e}"
            self.report.unsupported[name] += f", {quantized:.1e} with quantization" * low
            self.report.faster_dense.pop(name, None)
            return
        self.report.unsupported.pop(name, None)  # from a variant that was not chosen
        if name not in self.report.faster_dense:
            self._check_original_code(name, block, output, call)
            replace_module(self.net, original, block)
            self.report.norms.update((str(norm.problem), self._norms.report(norm)) for norm in norms)
        layout = "feature_major" if block.feature_major else "row_major"
        of_rows = [norm for norm in block.norms if isinstance(norm, FusedRowNorm)]
        residual_norms = sum(norm.adds for norm in of_rows)
        residual_norms += sum(isinstance(norm, FusedResidualNorm) for norm in block.norms)
        launches = (*(str(norm.launch) for norm in norms), *("cuda_rows" for _ in of_rows))
        norms_there = len(block.norms), error, residual_norms, launches
        shown = quantized if low else None
        choices = block.hidden_bytes, block.has_own_attention, block.fuses_cached
        self.report.blocks[name] = BlockReport(layout, products, *norms_there, shown, *choices)

    @torch.no_grad()
    def _check_original_code(self, name: str, block: FusedBlock, output: Any, call: BlockCall) -> None:
        """Check that the block's original code with its products gives the output of its graph."""
        try:
            error = output_error(block.original_output(call.args, call.kwargs), output)
        except Exception as raised:  # it may read attributes of a Linear that its replacement lacks
            log.debug("the code of block %s cannot run around its products: %s", name, failure_reason(raised))
            error = math.inf
        block.original_code_is_right = error <= _error_limit(block)


def _error_limit(block: FusedBlock) -> float:
    """Largest relative error of a block's output against another way to compute it."""
    if has_low_precision(block):
        return LOW_PRECISION_ERROR_LIMIT
    return NETWORK_ERROR_LIMIT[next(iter(block.product_of.values())).format.dtype]


def _with_own_attention(rewriting: Rewriting, layouts: Sequence[str]) -> list[Rewriting]:
    """The rewriting with our attention, and feature-major, where that removes changes of layout."""
    others = [replace(rewriting, name=f"{rewriting.name}_attention", attention=True)]
    if rewriting.layout == "row_major" and not rewriting.low and "feature_major" in layouts:
        others.append(replace(others[0], layout="feature_major", name="feature_major_attention"))
    return others


def _layouts_of(blocks: Iterable[PreparedBlock], layouts: Sequence[str]) -> Sequence[str]:
    """Layouts to try: only row-major, if allowed, for blocks without LayerNorm, since other norms need row-major input."""
    norms = (block.captured.graph.find_nodes(op="call_function", target=LAYER_NORM) for block in blocks)
    return layouts if "row_major" not in layouts or any(norms) else ("row_major",)


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
    precision: Precision = IN_16_BITS,
) -> FusionReport:
    """Rewrite every encoder or decoder block with fused products in the fastest layout, in place.

    A block (an element of a ModuleList or Sequential with Linears) is exported to a graph of operators and rewritten: query,
    key and value become one product, and so do the two Linears of a gated activation; activations, biases and residual
    additions are fused into the product before them; the residual stream may be feature-major if norms are LayerNorms; pruned
    hidden features are removed. The block's signature does not change; calls with a KV cache run its original code with the
    products. Blocks that cannot be exported or rewritten stay unchanged, with the reason in the report.

    On a CUDA device products are checked and timed, and the fastest variant of each chain of blocks that `choice` allows is
    kept, unchanged blocks included if dense is allowed. On a CPU references run, feature-major, and nothing is timed.

    Args:
        net: in eval mode, on the device and in the dtype that are measured; its pruned weights are already zero.
        formats: pruned Linear -> its weight in the pattern's canonical format, on any device and in any float dtype; other
            layers are dense.
        masks: the same layers -> bool [N, K], True = keep.
        inputs: keyword arguments of the net: the batch that is measured.
        choice: which kernels may run.
        plan: choices of an earlier call (`FusionReport.plan`), which are repeated without timing.
        parts: allowed rewrites; a plan needs those with which it was made.
        timed: times of earlier calls on this device, extended by those of this one.
        precision: of low-precision kernels to try next to 16-bit ones, in row-major blocks; if low, blocks without a pruned
            layer are rewritten, too.
    """
    if timed is None:
        timed = TimedProducts(None if current() is None else choice.kernels)
    chooser = ProductChooser(choice, timed=timed, precision=precision)
    task = BlockPass(net, formats, masks, inputs, chooser, plan, parts)
    return task.run(parts.layouts, plain=choice.dense_allowed)


def fuse_dense(
    net: nn.Module,
    inputs: Mapping[str, Any],
    *,
    layout: str | None = None,
    plan: FusionPlan | None = None,
    precision: Precision = IN_16_BITS,
) -> FusionReport:
    """`fuse_blocks` with every product dense, by cuBLAS or with its activation by a faster kernel: a baseline for fusion alone.

    Args:
        net, inputs, plan: as in `fuse_blocks`.
        layout: "feature_major" or "row_major" for the residual stream; None: per chain the faster one (on a CPU
            feature-major), in low precision row-major.
        precision: of all products that support it.
    Raises:
        InvalidSetting: an unknown layout.
    """
    if layout not in (None, *LAYOUTS):
        raise InvalidSetting("layout", layout, f"is one of {', '.join(LAYOUTS)}, or null for the faster one")
    chooser = ProductChooser(KernelChoice("auto"), dense=True, precision=precision)
    task = BlockPass(net, {}, {}, inputs, chooser, plan)
    return task.run(LAYOUTS if layout is None else (layout,), plain=False)


def make_dense_graph(
    net: nn.Module, inputs: dict[str, Tensor], precision: str = "none", calibration: Mapping[str, float] | None = None
) -> nn.Module:
    """A copy of a network whose encoder blocks are rewritten with every product dense: a `variants.Fuse`.

    In low precision all supported Linears but the heads are quantized, in networks without such blocks too: the dense
    baseline in this precision.

    Args:
        net: in eval mode, on the inputs' device; unchanged. Parameters that are not concatenated are shared with it.
        inputs: keyword arguments of one forward pass.
        precision, calibration: as in `sf.swap`.
    Raises:
        DoesNotApply: no block can be rewritten; in low precision, no Linear can be quantized.
        InvalidSetting: this device does not support the precision with the network's dtype.
    """
    chosen = Precision(precision, calibration or {})
    require_supported(chosen, next(iter(inputs.values())).device, network_dtype(net))
    fused = copy_sharing_weights(net)
    as_linears(fused, copies=True)
    rewrite_dense(fused, inputs, chosen)
    return fused.eval()


def rewrite_dense(net: nn.Module, inputs: dict[str, Tensor], precision: Precision) -> dict[str, str]:
    """`make_dense_graph` of this network, in place.

    Returns:
        in low precision, Linear that is called -> the precision, or why it stays in 16 bits.
    """
    shorten_compiler_messages()
    linears = linear_inputs(net, {}, inputs, precision)
    report = fuse_dense(net, inputs, precision=precision)
    reasons = quantize_linears(net, linears, report.product_of, precision)
    if precision.is_low and not has_low_precision(net):
        raise DoesNotApply("; ".join({*reasons.values(), *report.summary()}) or "the network has no Linear")
    if not precision.is_low and not report.rewritten:
        raise DoesNotApply("; ".join(report.summary()) or "the network has no encoder blocks")
    return dict.fromkeys(linears.inputs, precision.name) | reasons
