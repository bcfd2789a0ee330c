"""From scores to the pattern, order and sparsity of every layer, by what an allocation measures."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sparsefront.allocation.choice_table import Assignment, ChoiceTable, Item
from sparsefront.allocation.measuring import Found, MeasuringAllocation
from sparsefront.counted import counted
from sparsefront.errors import keys_of
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.evaluating import with_errors
from sparsefront.latency_search.loss import pruned_loss
from sparsefront.latency_search.network import SearchedNetwork
from sparsefront.latency_search.table import measure_times
from sparsefront.latency_search.timing import Timing
from sparsefront.obs.hessian import input_hessian
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.settings import PruningSettings
from sparsefront.tasks.base import Batch, Task
from sparsefront.time_use import working_time

log = logging.getLogger(__name__)
WEIGHED_BY = 4  # calibration batches: every product is tried on them twice
Loader = Callable[[], Iterable[Batch]]
Stored = Callable[[Callable[[], ChoiceTable]], ChoiceTable]


@dataclass(frozen=True)
class SearchRecord:
    """What a search did; `seconds` are its own, those of the table beside, and `seconds_of` the parts of its own."""

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
        """JSON-able."""
        found, refined = self.found, self.found.refined
        return {
            "latency_predicted_ms": found.predicted_ms,
            "latency_budget_ms": found.budget_ms,
            "latency_dense_ms": found.dense_ms,
            "corrections": [
                {"predicted_ms": predicted, "measured_ms": measured} for predicted, measured in found.rounds
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
    """What a search is given beside the network and its scores.

    Args:
        timing: of products and of the whole network.
        held_out: opens a loader of the batches that evaluate assignments.
        stored: gives the table that an earlier search of this network made, or what it is handed makes.
        stored_times: likewise the table without errors, of any network of this architecture.
    """

    timing: Timing
    held_out: Loader
    stored: Stored = lambda make: make()
    stored_times: Stored = lambda make: make()

    def layout(
        self,
        task: Task,
        scores: Mapping[str, Tensor],
        pruning: PruningSettings,
        calibration: Loader,
        tell: Callable[[str], None] = log.info,
    ) -> tuple[MaskLayout, SearchRecord]:
        """Search for the pattern, order and sparsity of every layer.

        Args:
            task: the dense network and its loss.
            scores: layer that may be pruned -> float32 [N, K].
            pruning: with an allocation that measures.
            calibration: opens a loader of training batches, whose inputs the errors are taken from.
            tell: gets a line for each step.
        Raises:
            InvalidSetting: a budget out of reach, its key written from the root.
        """
        masks = CandidateMasks(scores, pruning.pattern.parts)
        table = self.stored(lambda: self._table(task, masks, pruning, calibration))
        start = working_time()
        network = SearchedNetwork(task, table, masks, pruning.pattern, self.timing, self.held_out)
        with keys_of("allocation"):
            found = _measuring(pruning).assign(table, network, lambda line: tell(f"search: {line}"))
        tell(f"search: {_told(table, found.assignment)}; predicted {found.predicted_ms:.3f} ms")
        record = SearchRecord(table, found, working_time() - start, network.seconds)
        return network.layout(found.assignment, scores), record

    def _table(self, task: Task, masks: CandidateMasks, pruning: PruningSettings, calibration: Loader) -> ChoiceTable:
        layers = list(masks.scores)
        times = self.stored_times(
            lambda: measure_times(
                task.net,
                layers,
                pattern=pruning.pattern,
                ceiling=pruning.sparsity,
                masks=masks,
                timing=self.timing,
            )
        )
        seen = NetworkCalibration(task, layers, calibration)
        batches = list(seen.batches(_measuring(pruning).calibration_batches))
        return with_errors(
            times,
            task.net,
            masks,
            hessians=seen.sums_over(layers, batches, input_hessian),
            loss=lambda made: pruned_loss(task, made, batches[:WEIGHED_BY]),
        )


def _measuring(pruning: PruningSettings) -> MeasuringAllocation:
    assert isinstance(pruning.allocation, MeasuringAllocation)  # who else would search
    return pruning.allocation


def _told(table: ChoiceTable, assignment: Assignment) -> str:
    """How many layers got what, the commonest first."""
    counts: dict[str, int] = {}
    for item, number in zip(table.items, assignment.options, strict=True):
        option = item.options[number]
        name = "dense" if option.pattern is None else f"{table.patterns[option.pattern]} at {option.sparsity:g}"
        counts[name] = counts.get(name, 0) + len(item.layers)
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{counted(count, 'layer')} {name}" for name, count in ordered)
