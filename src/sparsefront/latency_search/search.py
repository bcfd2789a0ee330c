"""Latency search: choose the pattern, permutation and sparsity of every layer from measurements of the network."""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.allocation.assignment import Assignment, ChoiceTable, Item, Option
from sparsefront.allocation.base import Found, Measured, MeasuringAllocation
from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.export.packed_layers import pack_layers
from sparsefront.inference.benchmark import find_dtype
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.network_modules import release_formats
from sparsefront.inference.swap import swap_layers
from sparsefront.latency_search.evaluating import CandidateMasks, evaluate_pruned, with_errors
from sparsefront.latency_search.table import Timing, measure_times
from sparsefront.masks.weight_view import like_weight
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.settings import Measure
from sparsefront.obs.sweep import input_hessian
from sparsefront.patterns.base import Pattern
from sparsefront.progress import counted, working_time
from sparsefront.pruning.calibration import Calibration, NetworkCalibration
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.tasks.base import Batch, Task
from sparsefront.training.compilation import fastest_algorithms

# The network under an assignment: latency of the whole network, and loss on held-out data.

DENSE, SWAP, TIMING, LOSS = "dense_versions", "swap", "timing", "held_out_loss"  # keys of `SearchedNetwork.seconds`


class SearchedNetwork:
    """`allocation.base.Network` of a task's network.

    Args:
        task: the dense network and its loss, on the device of the computation.
        table: of choices that assignments refer to.
        masks: of the candidates.
        pattern: the mixed pattern with all candidates.
        timing: of the whole network.
        held_out: opens a loader of batches that evaluate assignments; the same ones each time.

    Attributes:
        seconds: kind of work -> seconds, without waiting for other processes.
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

    def pick_options(self, assignment: Assignment) -> dict[str, Option]:
        """Layer -> its option."""
        pairs = zip(self._table.items, assignment.options, strict=True)
        return {layer: item.options[option] for item, option in pairs for layer in item.layers}

    def spec(self, assignment: Assignment, layers: Iterable[str]) -> MaskSpec:
        """The mask spec of an assignment for these layers; layers in no item stay dense."""
        options, orders = self.pick_options(assignment), {}
        patterns: dict[str, Pattern] = {}
        for layer, option in options.items():
            if option.pattern is None:
                continue
            patterns[layer] = self._masks.patterns[option.pattern]
            order = self._masks.permutation(layer, option.pattern, option.sparsity)
            if order is not None:
                orders[layer] = order
        sparsities = {layer: options[layer].sparsity if layer in options else 0.0 for layer in layers}
        return MaskSpec(orders, sparsities, patterns)

    @fastest_algorithms()
    def measure(self, assignment: Assignment) -> Measured:
        timing, net = self._timing, copy.deepcopy(self._task.net)
        made = {layer: self._mask(layer, option) for layer, option in self.pick_options(assignment).items()}
        spec = self.spec(assignment, made)
        with torch.no_grad():
            for layer, mask in made.items():
                weight = net.get_submodule(layer).weight
                weight.masked_fill_(~like_weight(mask, weight).to(weight.device), 0.0)
        packed = pack_layers(
            net,
            made,
            pattern=self._pattern,
            sparsity=max(spec.sparsities.values()) if spec.sparsities else 0.0,
            permutations=spec.permutations,
            sparsities=spec.sparsities,
            patterns=spec.patterns,
        )
        problems = observe_problems(timing.ready(net), timing.inputs, list(made))
        with keys_of("kernel"), self._add_time(SWAP):
            swap_layers(
                net, packed, problems, timing.kernel, device=timing.device, dtype=timing.dtype, inputs=timing.inputs
            )
        release_formats(net)
        dense = self._dense
        with self._add_time(TIMING):
            return timing.in_turn(net, dense)

    @cached_property
    def _dense(self) -> Execution:
        with self._add_time(DENSE):
            net = self._timing.ready(copy.deepcopy(self._task.net))
            return self._timing.dense_execution(net, self._table.dense_versions)

    def loss(self, assignment: Assignment, batches: int) -> float:
        with self._add_time(LOSS):
            made = {layer: self._mask(layer, option) for layer, option in self.pick_options(assignment).items()}
            return evaluate_pruned(self._task, made, self._take_batches(batches))

    @contextmanager
    def _add_time(self, what: str) -> Iterator[None]:
        start = working_time()
        try:
            yield
        finally:
            self.seconds[what] += working_time() - start

    def _mask(self, layer: str, option: Option) -> Tensor:
        """The mask of an option, cached, since few options recur often."""
        key = layer, option.pattern, option.sparsity
        if key not in self._kept:
            self._kept[key] = self._masks.mask(layer, option.pattern, option.sparsity).cpu()
        return self._kept[key]

    def _take_batches(self, count: int) -> list[Batch]:
        if self._read < count:
            device = next(self._task.net.parameters()).device
            self._batches = [_on(batch, device) for batch in islice(self._open(), count)]
            self._read = count
            if not self._batches:
                raise ValueError("there is no held-out batch to evaluate on")
        return self._batches[:count]


def _on(batch: Mapping[str, object], device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}


log = logging.getLogger(__name__)
WEIGHED_BY = 4  # calibration batches; every product is evaluated on them twice
Loader = Callable[[], Iterable[Batch]]
Stored = Callable[[Callable[[], ChoiceTable]], ChoiceTable]


@dataclass(frozen=True)
class SearchRecord:
    """The record of a search; `seconds` exclude those of the table, and `seconds_of` splits them by kind of work."""

    table: ChoiceTable
    found: Found
    seconds: float
    seconds_of: Mapping[str, float] = field(default_factory=dict)

    @property
    def layers(self) -> dict[str, dict[str, Any]]:
        """Layer -> its pattern, sparsity, layout, kernel, and the predicted time and error of its product."""
        pairs = zip(self.table.items, self.found.assignment.options, strict=True)
        return {layer: self._choice(item, number) for item, number in pairs for layer in item.layers}

    def _choice(self, item: Item, number: int) -> dict[str, Any]:
        option, layout = item.options[number], self.found.assignment.layout_of(item)
        return {
            "pattern": "dense" if option.pattern is None else self.table.patterns[option.pattern],
            "sparsity": option.sparsity,
            "layout": layout,
            "kernel": option.kernels.get(layout),
            "product": list(item.layers),
            "product_latency_us": option.times_us[layout],
            "product_error": option.error,
        }

    def to_json(self) -> dict[str, Any]:
        """Fields of the result."""
        result, refined = self.found, self.found.refined
        return {
            "latency_predicted_ms": result.predicted_ms,
            "latency_budget_ms": result.budget_ms,
            "latency_dense_ms": result.dense_ms,
            "corrections": [
                {"predicted_ms": predicted, "measured_ms": measured} for predicted, measured in result.rounds
            ],
            "held_out_loss": None if refined is None else {"before": refined.loss_before, "after": refined.loss},
            "assignments_evaluated": 0 if refined is None else refined.tried,
            "table_seconds": self.table.seconds,
            "search_seconds": self.seconds,
            "search_seconds_of": dict(self.seconds_of),
            "layers": self.layers,
        }


@dataclass(frozen=True, eq=False)
class Search:
    """Options of `sf.prune` for an allocation that measures, such as `sf.allocation.LatencySearch`.

    Args:
        timing: of products and of the whole network; None: with the example inputs of `sf.prune`, else the first calibration
            batch, on the network's device and in its own dtypes.
        held_out: opens a loader of the batches that evaluate assignments; None: the calibration batches.
        stored: (function that makes a table) -> this network's table, stored by an earlier search or made now.
        stored_times: likewise, for the table without errors, of any network of this architecture.
    """

    timing: Timing | None = None
    held_out: Loader | None = None
    stored: Stored = lambda make: make()
    stored_times: Stored = lambda make: make()

    def __post_init__(self) -> None:
        if self.timing is not None and not isinstance(self.timing, Timing):
            raise InvalidSetting("timing", type(self.timing).__name__, "is a Timing, or None")
        if self.held_out is not None and not callable(self.held_out):
            raise InvalidSetting(
                "held_out", type(self.held_out).__name__, "is a function that opens a loader of batches"
            )

    def spec(
        self,
        task: Task,
        scores: Mapping[str, Tensor],
        pruning: PruningSettings,
        calibration: Calibration,
        inputs: dict[str, Tensor] | None = None,
        tell: Callable[[str], None] = log.info,
    ) -> tuple[MaskSpec, SearchRecord]:
        """Search for the pattern, permutation and sparsity of every layer.

        Args:
            task: the dense network and its loss.
            scores: layer that may be pruned -> float32 [N, K].
            pruning: with an allocation that measures.
            calibration: opens a loader of training batches, on which errors are computed.
            inputs: keyword arguments of the network to time, if `timing` is None; None: the first batch.
            tell: called with a line of text for each step.
        Raises:
            InvalidSetting: a budget out of reach, with its full key; no batches to evaluate on; an unsupported dtype.
        """
        if self.held_out is None and next(iter(calibration()), None) is None:
            allowed = f"is what allocation={pruning.allocation.name} evaluates by: give batches"
            raise InvalidSetting("calibration", None, allowed)
        timing = self.timing or _default_timing(task.net, calibration.first_inputs() if inputs is None else inputs)
        masks = CandidateMasks(scores, pruning.pattern.parts)
        table = self.stored(lambda: self._table(task, masks, pruning, calibration, timing))
        start = working_time()
        network = SearchedNetwork(task, table, masks, pruning.pattern, timing, self.held_out or calibration)
        with keys_of("allocation"):
            result = _measuring(pruning).assign(table, network, lambda line: tell(f"search: {line}"))
        tell(f"search: {_summary(table, result.assignment)}; predicted {result.predicted_ms:.3f} ms")
        record = SearchRecord(table, result, working_time() - start, network.seconds)
        return network.spec(result.assignment, scores), record

    def _table(
        self, task: Task, masks: CandidateMasks, pruning: PruningSettings, calibration: Loader, timing: Timing
    ) -> ChoiceTable:
        layers = list(masks.scores)
        times = self.stored_times(
            lambda: measure_times(
                task.net, layers, pattern=pruning.pattern, ceiling=pruning.sparsity, masks=masks, timing=timing
            )
        )
        seen = NetworkCalibration(task, layers, calibration)
        batches = list(seen.batches(_measuring(pruning).calibration_batches))
        return with_errors(
            times,
            task.net,
            masks,
            hessians=seen.sums_over(layers, batches, input_hessian),
            loss=lambda made: evaluate_pruned(task, made, batches[:WEIGHED_BY]),
        )


def _default_timing(net: nn.Module, inputs: dict[str, Tensor]) -> Timing:
    device = next(iter(inputs.values())).device
    settings = Measure(device="cuda" if device.type == "cuda" else "cpu", dtype=find_dtype(net))
    return Timing(inputs, None, settings, KernelChoice())


def _measuring(pruning: PruningSettings) -> MeasuringAllocation:
    assert isinstance(pruning.allocation, MeasuringAllocation)  # others do not search
    return pruning.allocation


def _summary(table: ChoiceTable, assignment: Assignment) -> str:
    """Number of layers per pattern and sparsity as text, most common first."""
    counts: dict[str, int] = {}
    for item, number in zip(table.items, assignment.options, strict=True):
        option = item.options[number]
        name = "dense" if option.pattern is None else f"{table.patterns[option.pattern]} at {option.sparsity:g}"
        counts[name] = counts.get(name, 0) + len(item.layers)
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{counted(count, 'layer')} {name}" for name, count in ordered)
