"""The network under an assignment: how long it takes as a whole, and how much it loses on held-out data."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from sparsefront.allocation.choice_table import Assignment, ChoiceTable, Option
from sparsefront.allocation.measuring import Measured
from sparsefront.errors import keys_of
from sparsefront.export.packed_layers import pack_layers
from sparsefront.inference.network_modules import release_formats
from sparsefront.inference.swap import swap
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.loss import pruned_loss
from sparsefront.latency_search.timing import Timing
from sparsefront.masks.weight_view import like_weight
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.search import Execution
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.tasks.base import Batch, Task
from sparsefront.time_use import working_time
from sparsefront.training.determinism import fastest_algorithms

DENSE, SWAP, TIMING, LOSS = "dense_versions", "swap", "timing", "held_out_loss"  # what seconds are counted of


class SearchedNetwork:
    """`allocation.measuring.Network` of a task's network.

    Args:
        task: the dense network and its loss, on the device of the computation.
        table: whose assignments are asked about.
        masks: of the candidates.
        pattern: that the candidates are of.
        timing: of the whole network.
        held_out: opens a loader of batches that evaluate assignments; the same ones each time.

    Attributes:
        seconds: spent on what, without waiting for other processes.
    """

    def __init__(
        self,
        task: Task,
        table: ChoiceTable,
        masks: CandidateMasks,
        pattern: Pattern,
        timing: Timing,
        held_out: Callable[[], Iterable[Batch]],
    ) -> None:
        self._task, self._table, self._masks, self._pattern, self._timing = task, table, masks, pattern, timing
        self._open, self._read = held_out, 0
        self._batches: list[Batch] = []
        self._kept: dict[tuple[str, int | None, float], Tensor] = {}
        self.seconds = dict.fromkeys((DENSE, SWAP, TIMING, LOSS), 0.0)

    def chosen(self, assignment: Assignment) -> dict[str, Option]:
        """Layer -> its option."""
        pairs = zip(self._table.items, assignment.options, strict=True)
        return {layer: item.options[option] for item, option in pairs for layer in item.layers}

    def layout(self, assignment: Assignment, layers: Iterable[str]) -> MaskLayout:
        """What is fixed for the layers that are pruned or could be; one that no item holds stays dense."""
        options, orders = self.chosen(assignment), {}
        patterns: dict[str, Pattern] = {}
        for layer, option in options.items():
            if option.pattern is None:
                continue
            patterns[layer] = self._masks.patterns[option.pattern]
            if (order := self._masks.permutation(layer, option.pattern, option.sparsity)) is not None:
                orders[layer] = order
        sparsities = {layer: options[layer].sparsity if layer in options else 0.0 for layer in layers}
        return MaskLayout(orders, sparsities, patterns)

    @fastest_algorithms()
    def measure(self, assignment: Assignment) -> Measured:
        timing, net = self._timing, copy.deepcopy(self._task.net)
        made = {layer: self._mask(layer, option) for layer, option in self.chosen(assignment).items()}
        layout = self.layout(assignment, made)
        with torch.no_grad():
            for layer, mask in made.items():
                weight = net.get_submodule(layer).weight
                weight.masked_fill_(~like_weight(mask, weight).to(weight.device), 0.0)
        packed = pack_layers(
            net,
            made,
            pattern=self._pattern,
            sparsity=max(layout.sparsities.values()) if layout.sparsities else 0.0,
            permutations=layout.permutations,
            sparsities=layout.sparsities,
            patterns=layout.patterns,
        )
        problems = observe_problems(timing.ready(net), timing.inputs, list(made))
        with keys_of("kernel"), self._timed(SWAP):
            swap(net, packed, problems, timing.kernel, device=timing.device, dtype=timing.dtype, inputs=timing.inputs)
        release_formats(net)
        dense = self._dense
        with self._timed(TIMING):
            return timing.in_turn(net, dense)

    @cached_property
    def _dense(self) -> Execution:
        with self._timed(DENSE):
            net = self._timing.ready(copy.deepcopy(self._task.net))
            return self._timing.dense_execution(net, self._table.dense_versions)

    def loss(self, assignment: Assignment, batches: int) -> float:
        with self._timed(LOSS):
            made = {layer: self._mask(layer, option) for layer, option in self.chosen(assignment).items()}
            return pruned_loss(self._task, made, self._held_out(batches))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = working_time()
        try:
            yield
        finally:
            self.seconds[what] += working_time() - start

    def _mask(self, layer: str, option: Option) -> Tensor:
        """Kept once it was used: the same few come again and again."""
        key = layer, option.pattern, option.sparsity
        if key not in self._kept:
            self._kept[key] = self._masks.mask(layer, option.pattern, option.sparsity).cpu()
        return self._kept[key]

    def _held_out(self, count: int) -> list[Batch]:
        if self._read < count:
            device = next(self._task.net.parameters()).device
            self._batches = [_on(batch, device) for batch in islice(self._open(), count)]
            self._read = count
            if not self._batches:
                raise ValueError("there is no held-out batch to evaluate on")
        return self._batches[:count]


def _on(batch: Mapping[str, object], device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
