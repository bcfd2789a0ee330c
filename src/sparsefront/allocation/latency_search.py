"""Search for the patterns and sparsities of all layers that meet a latency, from measured times and pruning errors."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from sparsefront.allocation.assignment import (
    Assignment,
    ChoiceTable,
    Refined,
    dense_assignment,
    least_us,
    refine,
    solve,
    within,
)
from sparsefront.allocation.base import Found, MeasuringAllocation, Network
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import Batches, settings_class

CLOSE = 0.01  # relative error of the prediction below which no further round is needed


@settings_class()
class LatencySearch(MeasuringAllocation):
    """Find the most accurate network within a latency: each layer gets one of the candidates of `pattern=mixed`, or stays dense.

    All choices are timed on the device at hand, and so is the rest of the network. The sum of pruning errors on calibration
    inputs is minimized exactly (see `solve`), then an evolutionary search lowers the loss itself on held-out data (see
    `refine`). The configured `sparsity` is a ceiling.

    Args:
        latency_ms: of the whole network on one batch of the measurement.
        speedup: over the dense network in its fastest version, instead of `latency_ms`.
        bins: number of totals kept after each layer; more bring the solution closer to the optimum.
        batches: of calibration inputs.
        corrections: how often a solution is measured to correct the prediction, and then how often its refinement is: if
            that is faster than the target, refinement continues from it. 0: nothing is measured.
        generations, offspring: of the evolutionary search; 0 generations skip it.
        held_out_batches: for evaluating an assignment.
    """

    latency_ms: Annotated[float | None, Field(gt=0, description="milliseconds of one batch")] = None
    speedup: Annotated[float | None, Field(gt=1, description="dense time over sparse time")] = None
    bins: PositiveInt = 10_000
    batches: Batches = 8
    corrections: NonNegativeInt = 2
    generations: NonNegativeInt = 30
    offspring: PositiveInt = 8
    held_out_batches: Batches = 8
    name: ClassVar[str] = "latency_search"

    @property
    def calibration_batches(self) -> int:
        return self.batches

    def check_sparsity(self, sparsity: float) -> None:
        if (self.latency_ms is None) == (self.speedup is None):
            both = (
                "not with allocation.speedup"
                if self.speedup is not None
                else "or allocation.speedup, the latency wanted"
            )
            raise InvalidSetting("latency_ms", self.latency_ms, f"milliseconds of one batch, {both}")

    def assign(self, table: ChoiceTable, network: Network, tell: Callable[[str], None] = lambda line: None) -> Found:
        """Run the search.

        Args:
            network: measures and evaluates assignments.
            tell: receives a line per step.
        Raises:
            InvalidSetting: key `latency_ms` or `speedup`; says what can be reached.
        """
        budget_us = self._budget_us(table.dense_us)
        if (
            budget_us >= table.dense_us
        ):  # with blocks rewritten for sparse products, dense may be slower than its fastest version
            tell(
                f"the dense network takes {table.dense_us / 1e3:.3f} ms, within the {budget_us / 1e3:.3f} asked for: nothing is "
                "pruned, and a recovery only trains it on"
            )
            return Found(dense_assignment(table), table.dense_us / 1e3, budget_us / 1e3, table.dense_us / 1e3)
        corrected = _Corrected(table, network, tell)
        assignment = self._solve(table, budget_us)
        for _ in range(self.corrections):
            near = corrected.by(assignment) <= CLOSE
            budget_us = self._budget_us(corrected.table.dense_us)
            assignment = self._solve(corrected.table, budget_us)
            if near:
                break
        refined = self._refine(corrected.table, Refined(assignment), budget_us, network, tell)
        table, chosen = corrected.table, refined.assignment
        for round in range(self.corrections):
            if chosen in corrected.measured:
                break
            corrected.by(chosen)
            budget_us = self._budget_us(corrected.table.dense_us)
            within_budget = within(corrected.table, chosen, budget_us)
            if within_budget is None:  # the refined assignment is slower than anything predicted
                chosen = assignment
                break
            table, chosen, assignment = corrected.table, within_budget, within_budget
            is_last = round == self.corrections - 1  # the result must be measured
            if is_last or table.time_us(chosen) >= (1 - CLOSE) * budget_us:
                break
            # faster than the target: use the rest of the budget to keep weights
            refined = self._refine(table, replace(refined, assignment=chosen), budget_us, network, tell)
            chosen = refined.assignment
        if chosen != refined.assignment:
            refined = replace(refined, assignment=chosen, loss=network.loss(chosen, self.held_out_batches))
        dense_ms = corrected.table.dense_us / 1e3
        return Found(chosen, table.time_us(chosen) / 1e3, budget_us / 1e3, dense_ms, corrected.rounds, refined)

    def _budget_us(self, dense_us: float) -> float:
        return self.latency_ms * 1e3 if self.latency_ms is not None else dense_us / (self.speedup or 1.0)

    def _refine(
        self, table: ChoiceTable, before: Refined, budget_us: float, network: Network, tell: Callable[[str], None]
    ) -> Refined:
        """Refine an assignment; the counts of earlier refinements are added."""
        refinement = refine(
            table,
            before.assignment,
            budget_us,
            network.loss,
            generations=self.generations,
            offspring=self.offspring,
            batches=self.held_out_batches,
        )
        if refinement.loss is None:
            return before
        tell(f"held-out loss {refinement.loss_before:.4g}, {refinement.loss:.4g} after {refinement.tried} swaps")
        first = refinement.loss_before if before.loss_before is None else before.loss_before
        return replace(refinement, loss_before=first, tried=before.tried + refinement.tried)

    def _solve(self, table: ChoiceTable, budget_us: float) -> Assignment:
        solution = solve(table, budget_us, bins=self.bins)
        if solution is None:
            raise self._out_of_reach(table)
        return solution

    def _out_of_reach(self, table: ChoiceTable) -> InvalidSetting:
        least = min(least_us(table), table.dense_us)
        of_these = "the candidates up to the root's sparsity, its ceiling,"
        if self.speedup is not None:
            allowed = f"out of reach: {of_these} allow {table.dense_us / least:.3f} at most, {least / 1e3:.4g} ms"
            return InvalidSetting("speedup", self.speedup, f"{allowed} (dense {table.dense_us / 1e3:.4g} ms)")
        allowed = f"out of reach: {of_these} need {least / 1e3:.4g} ms at least (dense {table.dense_us / 1e3:.4g} ms)"
        return InvalidSetting("latency_ms", self.latency_ms, allowed)


class _Corrected:
    """A table with its prediction shifted to match measured networks. The dense time is the one measured in turn with them: alone
    the dense network may be slower, because it heats the GPU more.

    Attributes:
        rounds: (predicted, measured) milliseconds of each measurement.
        measured: the assignments measured.
    """

    def __init__(self, table: ChoiceTable, network: Network, tell: Callable[[str], None]) -> None:
        self.table, self._network, self._tell = table, network, tell
        self.rounds: list[tuple[float, float]] = []
        self.measured: list[Assignment] = []
        self._dense_us: list[float] = []

    def by(self, assignment: Assignment) -> float:
        """Measure an assignment and correct the table; returns the prediction's error relative to the measurement."""
        predicted, measurement = self.table.time_us(assignment), self._network.measure(assignment)
        measured = measurement.network_us
        self.rounds.append((predicted / 1e3, measured / 1e3))
        self.measured.append(assignment)
        self._dense_us.append(measurement.dense_us)
        comparison = f"predicted {predicted / 1e3:.3f} ms, measured {measured / 1e3:.3f} ms"
        self._tell(f"{comparison} beside {measurement.dense_us / 1e3:.3f} ms of the dense network")
        rest_us = self.table.rest_us + measured - predicted
        self.table = replace(self.table, rest_us=rest_us, dense_us=fmean(self._dense_us))
        return abs(measured - predicted) / measured
