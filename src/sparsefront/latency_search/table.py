"""The times of a table of choices: what a network takes under every candidate, product by product."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from sparsefront.allocation.choice_table import ROW_MAJOR, ChoiceTable, Item, Option
from sparsefront.counted import counted
from sparsefront.inference.fusion.fuse import fuse_dense
from sparsefront.inference.fusion.plan import LAYOUTS
from sparsefront.inference.fusion.product_times import ProductTimes
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.layer_times import Timed, layer_time, product_times
from sparsefront.latency_search.timing import Timing
from sparsefront.measure.problems import LayerInput, observe_problems
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.records import label
from sparsefront.progress import bar
from sparsefront.time_use import working_time
from sparsefront.training.determinism import fastest_algorithms

log = logging.getLogger(__name__)
Choice = tuple[int | None, float]
DENSE: Choice = (None, 0.0)


def measure_times(
    net: nn.Module, layers: list[str], *, pattern: Pattern, ceiling: float, masks: CandidateMasks, timing: Timing
) -> ChoiceTable:
    """Time every choice of every layer; errors are left at 0, see `evaluating.with_errors`.

    Layers of the same product share times, as do blocks that are built alike: the middle one of them stands for all. Weights
    matter little: networks of one architecture may share the table.

    Args:
        net: dense; stays as it is.
        layers: that may be pruned.
        pattern: of several candidates.
        ceiling: on the sparsity of a layer.
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
    """Times of one network.

    Args:
        net: ready, dense.
        problems: layer -> what it receives.
        choices: layer -> what it may be given beside dense.
    """

    net: nn.Module
    timing: Timing
    masks: CandidateMasks
    problems: Mapping[str, LayerInput]
    choices: Mapping[str, list[Choice]]

    def __post_init__(self) -> None:
        # on a CPU the swap rewrites in the first layout
        self.layouts = LAYOUTS if self.timing.device.type == "cuda" else LAYOUTS[:1]
        kernel = self.timing.products
        self.products = ProductTimes(self.net, self.timing.inputs, kernel) if kernel.fuse else None

    def items(self) -> list[Item]:
        """Without errors; products of blocks first."""
        found = [] if self.products is None else self._block_items(self.products)
        covered = {layer for item in found for layer in item.layers}
        known: dict[object, list[Option]] = {}
        for layer in bar(list(self.choices), description="time layers", unit="layer"):
            if layer in covered:
                continue
            module = self.net.get_submodule(layer)
            key = (repr(module), self.problems[layer], tuple(self.choices[layer]))
            if key not in known:
                known[key] = self._layer_options(layer)
            found.append(Item((layer,), None, known[key]))
        return found

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
        found = []
        for chain, blocks in products.chains.items():
            alike: dict[object, list[str]] = {}
            for block in blocks:
                alike.setdefault((products.group(block), self._choices_of(block)), []).append(block)
            for members in bar(list(alike.values()), description="time products", unit="kind of block"):
                example = members[len(members) // 2]
                times = self._block_times(products, example)
                for block in members:
                    for group, own in zip(products.products[example], products.products[block], strict=True):
                        if options := times.get(group):
                            pruned = tuple(layer for layer in own if layer in self.choices)
                            found.append(Item(pruned, chain, options))
        return found

    def _choices_of(self, block: str) -> tuple:
        """What tells its layers apart from those of a block that is built alike."""
        inside = {layer: choices for layer, choices in self.choices.items() if layer.startswith(f"{block}.")}
        return tuple((layer.removeprefix(f"{block}."), tuple(choices)) for layer, choices in inside.items())

    def _block_times(self, products: ProductTimes, block: str) -> dict[tuple[str, ...], list[Option]]:
        """Product -> its options, in every layout."""
        inside = [layer for layer in self.choices if layer.startswith(f"{block}.")]
        wanted = dict.fromkeys(choice for layer in inside for choice in self.choices[layer])
        options: dict[tuple[str, ...], list[Option]] = {}
        for choice in (DENSE, *wanted):
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
        return {group: found for group, found in options.items() if found[0].pattern is None}

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
        times_us={layout: found.latency_us for layout, found in timed.items()},
        kernels={layout: found.kernel for layout, found in timed.items()},
    )


def _in_order(items: list[Item], called: list[str]) -> list[Item]:
    """In the order in which the network calls their first layers, the items of a chain together."""
    places = {layer: place for place, layer in enumerate(called)}
    firsts = [min(places[layer] for layer in item.layers) for item in items]
    begins: dict[str, int] = {}
    for item, first in zip(items, firsts, strict=True):
        if item.chain is not None:
            begins[item.chain] = min(first, begins.get(item.chain, first))
    keys = [(first if item.chain is None else begins[item.chain], first) for item, first in zip(items, firsts)]
    return [items[place] for place in sorted(range(len(items)), key=keys.__getitem__)]
