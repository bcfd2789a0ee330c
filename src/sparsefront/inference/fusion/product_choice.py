"""Choose a correct kernel for each product, on a GPU the fastest at its real shape and layouts."""

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from sparsefront_kernels import SparseFormat, labeled
from sparsefront_kernels.norm.rows import rows_unsupported_reason
from torch import Tensor, nn

from sparsefront.gpu import exclusive
from sparsefront.inference.autotune import Candidate, try_all, untimed_rank
from sparsefront.inference.choice import DENSE, KernelChoice, is_dense
from sparsefront.inference.fusion.calls import Unfusable, find_chains, observe_blocks
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.plan import ProductReport
from sparsefront.inference.fusion.prepared_block import BlockCaptures, ProductSpec
from sparsefront.inference.fusion.products import (
    ProductTuning,
    dense_candidate,
    low_dense_products,
    sparse_candidates,
    try_only,
)
from sparsefront.inference.fusion.timed_products import MOST_LAUNCHES, SLOWER, TimedProduct, TimedProducts, Work
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.search_time import LAYER, timed_work, too_late
from sparsefront.measure.timers import KernelTime, launch_of, time_layer, time_on_any_device


@dataclass(frozen=True)
class ChosenProduct:
    """A product with its kernel.

    Args:
        report: of the choice.
        norm_adds_residual: whether the norm after it adds the residual, and `norm_bias` if the product does not add the bias.
    """

    product: FusedProduct
    report: ProductReport
    norm_adds_residual: bool = False
    norm_bias: Tensor | None = None


@dataclass
class ProductChooser:
    """Chooses and checks a kernel for one product at a time.

    Products of equal work are timed once; nearly equal ones only time the kernels and launches that were fast in the first.

    Args:
        choice: which kernels may run.
        dense: True for the baseline with every product dense.
        on_cpu: whether to time references without a GPU, for a latency search on any device.
        timed: products timed so far.
        precision: of low-precision kernels to try next to 16-bit ones, in row-major blocks.
    """

    choice: KernelChoice
    dense: bool = False
    on_cpu: bool = False
    timed: TimedProducts = field(default_factory=TimedProducts)
    precision: Precision = IN_16_BITS

    def choose(
        self, spec: ProductSpec, m: int, *, feature_major: bool, kernel: str | None = None, low: bool = False
    ) -> ChosenProduct:
        """Choose the kernel of a product; the norm after it adds a residual that the kernel cannot fuse.

        Args:
            m: rows of X.
            feature_major: layout of the residual stream.
            kernel: chosen before; nothing is timed.
            low: prefer a low-precision kernel even if a 16-bit one is faster on its own: inside a block quantization may cost
                less than between 16-bit tensors.
        Raises:
            Unfusable: no allowed kernel is correct, or not the one that was chosen before.
        """
        chosen = self._fastest(spec, m, feature_major, kernel, low)
        name = chosen.report.kernel
        can_add = spec.normed and (feature_major or _row_norm_adds(spec))
        if not can_add or labeled(name)[0].fuses_epilogue:
            return chosen
        # cuBLAS adds a bias to row-major outputs only, other kernels before they store
        with_bias = not feature_major or name != DENSE
        alone = self._fastest(spec.without_residual(with_bias=with_bias), m, feature_major, name, low)
        report = replace(chosen.report, residual=False, relative_error=alone.report.relative_error)
        return ChosenProduct(alone.product, report, True, None if with_bias else spec.weight.bias)

    def _fastest(self, spec: ProductSpec, m: int, feature_major: bool, kernel: str | None, low: bool) -> ChosenProduct:
        """The fastest correct kernel, or the one that was chosen before."""
        tuning = ProductTuning(spec, m, feature_major, self.precision)
        if kernel is not None or not self.times_on(tuning.problem.device):
            return self._first_right(tuning, self._candidates(tuning, kernel), None, low)
        work = Work.of(spec, tuning.problem, self.precision.name)
        equal, nearly = self.timed.equal(work), self.timed.nearly_equal(work)
        if equal is None and not self.dense and (late := too_late(tuning.name, LAYER)) is not None:
            return self._untimed(tuning, nearly, late, low)
        if equal is not None:
            fastest = equal.fastest(dense_allowed=self.choice.dense_allowed, low=low)
            candidates = self._candidates(tuning, None, try_only(fastest))
            tuning.launches, tuning.unsupported = equal.launches, dict(equal.unsupported)
            with suppress(Unfusable):
                return self._first_right(tuning, candidates, equal, low)
        elif nearly is not None:
            candidates = self._candidates(tuning, None, nearly.why_not)
            tuning.launches = nearly.launches
            with suppress(Unfusable):
                return self._first_right(tuning, candidates, self._times(tuning, candidates, work, nearly), low)
        candidates = self._candidates(tuning, None)
        with timed_work(LAYER):
            times = equal or self._times(tuning, candidates, work, None)
        return self._first_right(tuning, candidates, times, low)

    def _untimed(self, tuning: ProductTuning, nearly: TimedProduct | None, late: str, low: bool) -> ChosenProduct:
        """The fastest kernel of a nearly equal product, else the one that was faster than dense in most measurements, else dense
        if that is allowed; `late` is why none is timed.

        Raises:
            Unfusable: none is correct.
        """
        if nearly is not None:
            tuning.launches = nearly.launches
            return self._first_right(tuning, self._candidates(tuning, None, nearly.why_not), nearly, low)
        candidates = self._candidates(tuning, None)
        candidates.sort(key=partial(untimed_rank, density=tuning.spec.density))
        tuning.unsupported |= {candidate.label: late for candidate in candidates[1:]}
        return self._first_right(tuning, candidates, None, low)

    def _first_right(
        self, tuning: ProductTuning, candidates: list[Candidate], times: TimedProduct | None, low: bool
    ) -> ChosenProduct:
        """The fastest correct candidate, or the first without times; with `low` low-precision ones first.

        Raises:
            Unfusable: none is correct.
        """
        latencies = {} if times is None else times.latencies_us
        # untimed candidates last: they failed in the timed product (without times the order stays)
        ordered = sorted(candidates, key=lambda candidate: latencies.get(candidate.label, math.inf))
        if low:
            ordered.sort(key=lambda candidate: candidate.entry.precision == "none")
        for candidate in ordered:
            if (product := tuning.product(candidate)) is not None:
                return ChosenProduct(product, tuning.report(product, times))
        reasons = "; ".join(f"{name}: {why}" for name, why in tuning.unsupported.items()) or "none may run"
        raise Unfusable(f"has no kernel for {tuning.name}: {reasons}")

    def times_on(self, device: torch.device) -> bool:
        """Whether kernels are timed on this device."""
        return self.on_cpu or (device.type == "cuda" and self.choice.mode != "reference")

    def _candidates(
        self, tuning: ProductTuning, kernel: str | None, why_not: Callable[[str], str | None] = try_all
    ) -> list[Candidate]:
        """Allowed candidates; `why_not` gives the reason not to try a kernel, or None."""
        weight, problem = tuning.spec.weight, tuning.problem
        low = low_dense_products(weight, problem, self.choice, self.precision)
        dense, unsupported = low.usable, low.unsupported
        if self.dense or weight.stored is None or (kernel is not None and is_dense(kernel)):
            tuning.unsupported = unsupported
            dense.append(dense_candidate(weight))
            planned = [candidate for candidate in dense if candidate.label == kernel]
            return planned or (dense if kernel is None else dense[-1:])
        if kernel is not None:
            planned_one = sparse_candidates(weight, problem, self.choice, try_only(kernel), self.precision)
            tuning.unsupported = {label: why for label, why in planned_one.unsupported.items() if label == kernel}
            return planned_one.usable
        every = sparse_candidates(weight, problem, self.choice, why_not, self.precision)
        sparse, tuning.unsupported = every.usable, every.unsupported
        if not (self.choice.dense_allowed and self.times_on(problem.device)):
            # if no kernel can run, dense does; if they were only not tried, the caller asks again
            return sparse if sparse or why_not is not try_all else [*dense, dense_candidate(weight)]
        tuning.unsupported |= unsupported
        dense.append(dense_candidate(weight))
        reasons = {candidate.label: why_not(candidate.label) for candidate in dense}
        tuning.unsupported |= {label: reason for label, reason in reasons.items() if reason is not None}
        allowed = [candidate for candidate in dense if reasons[candidate.label] is None]
        if not (sparse or allowed) and why_not is try_all:
            return dense
        return [*sparse, *allowed]

    def _times(
        self, tuning: ProductTuning, candidates: list[Candidate], work: Work, nearly: TimedProduct | None
    ) -> TimedProduct:
        """Time the candidates, and dense even if it is not allowed; those that fail become unsupported."""
        trials = list(candidates)
        if all(candidate.label != DENSE for candidate in trials) and (nearly is None or nearly.why_not(DENSE) is None):
            trials.append(dense_candidate(tuning.spec.weight))
        if nearly is not None:  # fastest first, so that slow ones are cut short
            trials.sort(key=lambda candidate: nearly.latencies_us.get(candidate.label, math.inf))
        latencies, products = {}, []
        for candidate in trials:  # build, compile and check while other processes run, since timing stops them all
            if candidate.label == DENSE and (known_us := self.timed.dense_us(work)) is not None:
                latencies[DENSE] = known_us
            elif (product := tuning.product(candidate)) is not None:
                products.append(product)
        launches, fastest_us = {}, math.inf
        with exclusive(tuning.problem.device):
            for product in products:
                name = product.kernel_name
                time = tuning.time(product, partial(self._time, product, tuning, SLOWER * fastest_us))
                if time is None:
                    continue
                self.timed.timings += 1
                latencies[name] = time.latency_us
                in_use = launch_of(product, tuning.problem)
                launches[name] = time.launches[:MOST_LAUNCHES] or ((in_use,) if in_use is not None else ())
                if not is_dense(name):
                    fastest_us = min(fastest_us, time.latency_us)
        like = None if nearly is None else nearly.name
        timed = TimedProduct(work, latencies, launches, dict(tuning.unsupported), like)
        return self.timed.add(timed) if latencies else timed  # without times there is nothing to share

    def _time(self, product: FusedProduct, tuning: ProductTuning, at_most_us: float) -> KernelTime:
        if self.on_cpu and tuning.problem.device.type == "cpu":
            return time_on_any_device(product, *tuning.operands)
        launches, check = tuning.launches.get(product.kernel_name, ()), tuning.check.evaluate
        return time_layer(product, *tuning.operands, at_most_us=at_most_us, launches=launches, check=check)


def _row_norm_adds(spec: ProductSpec) -> bool:
    """Whether the kernel of row-major norms supports this product's output."""
    weight = spec.weight.weight
    return rows_unsupported_reason(len(weight), weight.dtype, weight.device) is None


# Times of block products under many masks, for a latency search that does not build a network for each of them.

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
