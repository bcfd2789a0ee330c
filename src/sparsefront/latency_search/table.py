"""The times in a table of choices: the latency of every candidate per product."""

import copy
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.allocation.assignment import ROW_MAJOR, ChoiceTable, Item, Option
from sparsefront.allocation.base import Measured
from sparsefront.inference.autotune import autotune_layer, dense_name, find_candidates
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_dense, make_dense_graph
from sparsefront.inference.fusion.calls import Unfusable, find_chains, observe_blocks
from sparsefront.inference.fusion.plan import LAYOUTS, ProductReport
from sparsefront.inference.fusion.prepared_block import BlockCaptures
from sparsefront.inference.fusion.product_choice import ProductChooser
from sparsefront.latency_search.evaluating import CandidateMasks
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.end_to_end import find_dense, set_decided_versions, time_against_dense, time_alone
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import LayerInput, observe_problems
from sparsefront.measure.settings import Measure
from sparsefront.measure.timers import time_on_any_device
from sparsefront.patterns.base import Pattern, label
from sparsefront.progress import bar, counted, working_time
from sparsefront.pruning.layers import explain_nested, layer_unsupported_reason
from sparsefront.pruning.masked_weights import masked
from sparsefront.training.compilation import fastest_algorithms

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Timing:
    """How to time a network during the search.

    Args:
        inputs: keyword arguments of the network: the batch that is timed, on the device and in the dtype of the measurement.
        dtype: of weights and activations; None: each keeps its own, as in networks whose norms are float32 and whose products
            are bfloat16.
        settings: of the measurement.
        kernel: which kernels may run.
    """

    inputs: dict[str, Tensor]
    dtype: torch.dtype | None
    settings: Measure
    kernel: KernelChoice

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    @property
    def products(self) -> KernelChoice:
        """Kernels allowed for timed products; on a CPU references, as in a swap."""
        return replace(self.kernel, mode="sparse") if self.device.type == "cpu" else self.kernel

    def ready(self, net: nn.Module) -> nn.Module:
        """Move the network to the device and dtype of the measurement, in eval mode."""
        return net.to(device=self.device, dtype=self.dtype).eval()

    def dense(self, net: nn.Module) -> tuple[float, tuple[str, ...]]:
        """Microseconds of a forward of the dense network in its fastest version, and the versions that a measurement times.

        Args:
            net: from `ready`.
        """
        timing = time_alone(net, self.inputs, self.settings, fuse=make_dense_graph)
        return timing.latency.median_ms * 1e3, timing.versions

    def network_us(self, net: nn.Module) -> float:
        """Microseconds of a forward in its fastest execution mode.

        Args:
            net: from `ready`.
        """
        return time_alone(net, self.inputs, self._quick).latency.median_ms * 1e3

    def in_turn(self, net: nn.Module, dense: Execution) -> Measured:
        """Time a network in turn with the dense one, as in a measurement.

        Args:
            net: from `ready`.
        """
        pruned, beside = time_against_dense(net, dense, self.inputs, self._quick)
        return Measured(pruned.median_ms * 1e3, beside.median_ms * 1e3)

    def dense_execution(self, net: nn.Module, versions: Sequence[str] = ()) -> Execution:
        """The dense network in its fastest version, to time sparse ones next to it.

        Args:
            net: from `ready`.
            versions: found for it before; if empty, or if one fails here, they are searched.
        """
        if versions:
            set_decided_versions(net, self.inputs, self._quick, versions, make_dense_graph)
        return find_dense(net, self.inputs, self._quick, make_dense_graph)

    @property
    def _quick(self) -> Measure:
        """The settings without max_autotune, which takes as long as all other modes together, unless it is the only mode."""
        modes = [mode for mode in self.settings.execution_modes if not mode.startswith("max_autotune")]
        return replace(self.settings, execution_modes=modes or self.settings.execution_modes)


# Times of products as the fusion pass builds them, without building a network for each candidate.

Layers = tuple[str, ...]


class ProductTimes:
    """Times products as the fusion pass would build them: joined, with their epilogues and layouts.

    Args:
        net: with dense weights, in eval mode, on the device and in the dtype that are measured; unchanged.
        inputs: keyword arguments of the net, the batch that is measured.
        choice: which kernels may run.
    Attributes:
        chains: container -> its blocks that can be rewritten, in order.
        products: block -> names in the network of the Linears of each product, with all products dense.
    """

    def __init__(self, net: nn.Module, inputs: Mapping[str, Any], choice: KernelChoice) -> None:
        self._net, self._choice = net, choice
        self._captures = BlockCaptures()
        self._chooser = ProductChooser(choice, on_cpu=True)
        all_chains = find_chains(net)
        blocks = [name for names in all_chains.values() for name in names]
        self._calls, self._rows = observe_blocks(net, blocks, inputs)
        self.products: dict[str, list[Layers]] = {}
        for name in blocks:
            try:
                prepared = self._captures.prepare(net, name, self._calls.get(name), self._rows, {}, {})
            except Unfusable:
                continue
            self.products[name] = [spec.weight.layers for spec in prepared.specs]
        rewritten = {chain: [name for name in names if name in self.products] for chain, names in all_chains.items()}
        self.chains = {chain: names for chain, names in rewritten.items() if names}

    def group(self, block: str) -> Hashable:
        """The key of the block's group of equal blocks."""
        return self._captures.groups[block]

    def of(
        self, block: str, formats: Mapping[str, SparseFormat], masks: Mapping[str, Tensor], layout: str
    ) -> list[ProductReport]:
        """The fastest kernel of each product of a block, with its time.

        Args:
            formats, masks: of its pruned Linears, as in `fuse_blocks`; the others are dense.
            layout: of the residual stream.
        Raises:
            Unfusable: no kernel is correct, or the block cannot be rewritten with these masks.
        """
        prepared = self._captures.prepare(self._net, block, self._calls[block], self._rows, formats, masks)
        feature_major = layout == "feature_major"
        return [
            self._chooser.choose(spec, self._rows[spec.weight.layers[0]], feature_major=feature_major).report
            for spec in prepared.specs
        ]


# Times of single layers outside of rewritten blocks, and of products inside, under a candidate.


@dataclass(frozen=True)
class Timed:
    """The fastest kernel and its microseconds."""

    latency_us: float
    kernel: str


def product_times(
    products: ProductTimes,
    net: nn.Module,
    block: str,
    masks: CandidateMasks,
    choice: tuple[int | None, float],
    layers: list[str],
    layout: str,
) -> dict[Layers, Timed]:
    """Product of the dense block -> its time under a candidate; empty where the block cannot be rewritten.

    Args:
        net: the network of `products`.
        choice: (index of the candidate, sparsity); None = dense.
        layers: of the block that get this candidate; the others are dense.
        layout: of the residual stream.
    """
    pattern, sparsity = choice
    made = {} if pattern is None else {layer: masks.mask(layer, pattern, sparsity) for layer in layers}
    with masked(net, made):
        try:
            formats = {
                layer: masks.compress(layer, as_matrix(net.get_submodule(layer).weight), mask, pattern, sparsity)
                for layer, mask in made.items()
                if pattern is not None
            }
            on_cpu = {layer: mask.cpu() for layer, mask in made.items()}
            reports = products.of(block, formats, on_cpu, layout)
        except Unfusable:
            return {}
    times: dict[Layers, Timed] = {}
    for group in products.products[block]:
        parts = [report for report in reports if set(report.layers) <= set(group)]
        if parts and all(report.latency_us is not None for report in parts):
            total = sum(report.latency_us or 0.0 for report in parts)
            times[group] = Timed(total, "+".join(dict.fromkeys(report.kernel for report in parts)))
    return times


def layer_time(
    net: nn.Module,
    layer: str,
    received: LayerInput,
    masks: CandidateMasks,
    choice: tuple[int | None, float],
    timing: Timing,
) -> Timed | None:
    """The time of a single layer with row-major input and output under a candidate; None where no kernel runs it."""
    module, (pattern, sparsity) = net.get_submodule(layer), choice
    device = timing.device
    x = torch.randn(received.input_shape, device=device, dtype=received.problem.dtype)
    if pattern is None:
        return Timed(time_on_any_device(module, x).latency_us, dense_name(module))
    if layer_unsupported_reason(module) or explain_nested(net, layer):
        return None
    mask = masks.mask(layer, pattern, sparsity)
    with masked(net, {layer: mask}):
        stored = masks.compress(layer, as_matrix(module.weight), mask, pattern, sparsity)
        stored = stored.to(device=device, dtype=module.weight.dtype)
        wants = partial(timing.products.wants, canonical=stored.family, device=device)
        candidates = find_candidates(stored, mask.to(device), received.problem, wants)
        tuned = autotune_layer(module, candidates, received)
        if not tuned.latencies_us:  # on a CPU
            timed = {kernel: time_on_any_device(runs, x).latency_us for kernel, runs in tuned.modules.items()}
            tuned.latencies_us.update(timed)
        chosen = tuned.fastest(dense_allowed=timing.products.dense_allowed)
        if chosen is None and not tuned.modules:
            return None
        name = chosen or tuned.dense
        return Timed(tuned.latencies_us[name], name)


Choice = tuple[int | None, float]
DENSE: Choice = (None, 0.0)


def measure_times(
    net: nn.Module, layers: list[str], *, pattern: Pattern, ceiling: float, masks: CandidateMasks, timing: Timing
) -> ChoiceTable:
    """Time every choice of every layer; errors stay 0, see `evaluating.with_errors`.

    Equal layers share times, and so do equal blocks, of which the middle one is timed. Weights matter little, so that networks
    of one architecture may share the table.

    Args:
        net: dense; unchanged.
        layers: that may be pruned.
        pattern: the mixed pattern with all candidates.
        ceiling: largest sparsity of a layer.
        masks: of the candidates, in the order of `pattern.parts`.
    """
    start = working_time()
    timed_net = timing.ready(copy.deepcopy(net))
    problems = observe_problems(timed_net, timing.inputs, layers)
    choices = _choices(pattern, ceiling, masks, [layer for layer in layers if layer in problems])
    with fastest_algorithms():
        measuring = _Measuring(timed_net, timing, masks, problems, choices)
        items = _in_order(measuring.items(), list(problems))
        layouts, rest_us = measuring.layouts_and_rest(items)
        dense_us, versions = timing.dense(timed_net)
    names = [label(part) for part in masks.patterns]
    most = counted(max(len(item.options) for item in items), "choice")
    log.info("search: %s, %s each at most", counted(len(items), "product"), most)
    return ChoiceTable(names, items, layouts, rest_us, dense_us, working_time() - start, versions)


def _choices(pattern: Pattern, ceiling: float, masks: CandidateMasks, layers: list[str]) -> dict[str, list[Choice]]:
    numbers = {id(part): number for number, part in enumerate(masks.patterns)}
    return {
        layer: [(numbers[id(part)], sparsity) for part, sparsity in pattern.choices(masks.shape(layer), ceiling)]
        for layer in layers
    }


@dataclass(eq=False)
class _Measuring:
    """Measures the times of one network.

    Args:
        net: dense, from `Timing.ready`.
        problems: layer -> its input.
        choices: layer -> its choices other than dense.
    """

    net: nn.Module
    timing: Timing
    masks: CandidateMasks
    problems: Mapping[str, LayerInput]
    choices: Mapping[str, list[Choice]]

    def __post_init__(self) -> None:
        # on a CPU the swap uses the first layout
        self.layouts = LAYOUTS if self.timing.device.type == "cuda" else LAYOUTS[:1]
        kernel = self.timing.products
        self.products = ProductTimes(self.net, self.timing.inputs, kernel) if kernel.fuse else None

    def items(self) -> list[Item]:
        """All items without errors, those of blocks first."""
        entries = [] if self.products is None else self._block_items(self.products)
        covered = {layer for item in entries for layer in item.layers}
        known: dict[object, list[Option]] = {}
        for layer in bar(list(self.choices), description="time layers", unit="layer"):
            if layer in covered:
                continue
            module = self.net.get_submodule(layer)
            key = (repr(module), self.problems[layer], tuple(self.choices[layer]))
            if key not in known:
                known[key] = self._layer_options(layer)
            entries.append(Item((layer,), None, known[key]))
        return entries

    def layouts_and_rest(self, items: list[Item]) -> tuple[dict[str, dict[str, float]], float]:
        """`ChoiceTable.layouts_us` and `rest_us`, from whole dense networks in each layout."""
        outside = sum(item.options[0].times_us[ROW_MAJOR] for item in items if item.chain is None)
        if self.products is None or not self.products.chains:
            return {}, self.timing.network_us(self.net) - outside
        beside = {}
        for layout in self.layouts:
            net = copy.deepcopy(self.net)
            fuse_dense(net, self.timing.inputs, layout=layout)
            products = sum(item.options[0].times_us[layout] for item in items if item.chain is not None)
            beside[layout] = self.timing.network_us(net) - products - outside
        rest = beside.get(ROW_MAJOR, beside[self.layouts[0]])
        counts = {chain: len(blocks) for chain, blocks in self.products.chains.items()}
        share = {chain: count / sum(counts.values()) for chain, count in counts.items()}
        held = dict.fromkeys(item.chain for item in items if item.chain is not None)
        layouts = {chain: {layout: (us - rest) * share[chain] for layout, us in beside.items()} for chain in held}
        return layouts, rest

    def _block_items(self, products: ProductTimes) -> list[Item]:
        entries = []
        for chain, blocks in products.chains.items():
            alike: dict[object, list[str]] = {}
            for block in blocks:
                alike.setdefault((products.group(block), self._choices_of(block)), []).append(block)
            for members in bar(list(alike.values()), description="time products", unit="kind of block"):
                example = members[len(members) // 2]
                times = self._block_times(products, example)
                for block in members:
                    for group, own in zip(products.products[example], products.products[block], strict=True):
                        options = times.get(group)
                        if options:
                            pruned = tuple(layer for layer in own if layer in self.choices)
                            entries.append(Item(pruned, chain, options))
        return entries

    def _choices_of(self, block: str) -> tuple:
        """Choices of the block's layers, by their names in the block: equal blocks may differ in them."""
        inside = {layer: choices for layer, choices in self.choices.items() if layer.startswith(f"{block}.")}
        return tuple((layer.removeprefix(f"{block}."), tuple(choices)) for layer, choices in inside.items())

    def _block_times(self, products: ProductTimes, block: str) -> dict[tuple[str, ...], list[Option]]:
        """Product -> its options, in every layout."""
        inside = [layer for layer in self.choices if layer.startswith(f"{block}.")]
        pruned_choices = dict.fromkeys(choice for layer in inside for choice in self.choices[layer])
        options: dict[tuple[str, ...], list[Option]] = {}
        for choice in (DENSE, *pruned_choices):
            fitting = [layer for layer in inside if choice == DENSE or choice in self.choices[layer]]
            per_layout = {
                layout: product_times(products, self.net, block, self.masks, choice, fitting, layout)
                for layout in self.layouts
            }
            for group in products.products[block]:
                pruned = [layer for layer in group if layer in inside]
                timed = {layout: times[group] for layout, times in per_layout.items() if group in times}
                if pruned and set(pruned) <= set(fitting) and len(timed) == len(self.layouts):
                    options.setdefault(group, []).append(_option(choice, timed))
        return {group: group_options for group, group_options in options.items() if group_options[0].pattern is None}

    def _layer_options(self, layer: str) -> list[Option]:
        options = []
        for choice in (DENSE, *self.choices[layer]):
            timed = layer_time(self.net, layer, self.problems[layer], self.masks, choice, self.timing)
            if timed is not None:
                options.append(_option(choice, {ROW_MAJOR: timed}))
        return options


def _option(choice: Choice, timed: Mapping[str, Timed]) -> Option:
    pattern, sparsity = choice
    return Option(
        pattern,
        sparsity,
        times_us={layout: timing.latency_us for layout, timing in timed.items()},
        kernels={layout: timing.kernel for layout, timing in timed.items()},
    )


def _in_order(items: list[Item], called: list[str]) -> list[Item]:
    """Sort items by the call order of their first layers, with the items of a chain together."""
    places = {layer: place for place, layer in enumerate(called)}
    firsts = [min(places[layer] for layer in item.layers) for item in items]
    begins: dict[str, int] = {}
    for item, first in zip(items, firsts, strict=True):
        if item.chain is not None:
            begins[item.chain] = min(first, begins.get(item.chain, first))
    keys = [(first if item.chain is None else begins[item.chain], first) for item, first in zip(items, firsts)]
    return [items[place] for place in sorted(range(len(items)), key=keys.__getitem__)]
