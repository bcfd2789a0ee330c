"""The kernel of each product: right, and where there is a GPU the fastest at its real shape and in its layouts."""

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from sparsefront_kernels import SparseFormat, labeled
from sparsefront_kernels.norm.rows import rows_unsupported_reason
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import alone
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.calls import Unfusable, find_chains, observe_calls
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.plan import ProductReport
from sparsefront.inference.fusion.prepared_block import BlockCaptures, ProductSpec
from sparsefront.inference.fusion.products import (
    DENSE,
    MOST_LAUNCHES,
    SLOWER,
    Candidate,
    ProductTuning,
    TimedProduct,
    TimedProducts,
    Work,
    any_kernel,
    dense_candidate,
    is_dense,
    low_dense_candidates,
    only,
    sparse_candidates,
)
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.search_time import LAYER, timed_work, too_late
from sparsefront.measure.timers import KernelTime, launch_of, time_layer, time_on_any_device


@dataclass(frozen=True)
class ChosenProduct:
    """A product with its kernel.

    Args:
        report: the record of the choice.
        summed_by_norm: whether the norm behind it adds the residual, and `norm_bias` where the product has no bias.
    """

    product: FusedProduct
    report: ProductReport
    summed_by_norm: bool = False
    norm_bias: Tensor | None = None


@dataclass
class ProductChooser:
    """Chooses kernels one product after the other, each of which is checked.

    Products of equal work are timed once, nearly equal ones with the kernels and launches that were fast in the first of them.

    Args:
        choice: which kernels may run.
        dense: True for the baseline with every product dense.
        on_cpu: references are timed too, where there is no GPU: a search needs times of any device.
        timed: what was timed so far.
        precision: of kernels that may run beside those of 16 bits, in row-major blocks.
    """

    choice: KernelChoice
    dense: bool = False
    on_cpu: bool = False
    timed: TimedProducts = field(default_factory=TimedProducts)
    precision: Precision = IN_16_BITS

    def choose(
        self, spec: ProductSpec, m: int, *, feature_major: bool, kernel: str | None = None, low: bool = False
    ) -> ChosenProduct:
        """The product with its kernel; a residual that the kernel cannot fuse is left to the norm behind it.

        Args:
            m: rows of X.
            feature_major: layout of the residual stream.
            kernel: chosen before; nothing is timed.
            low: whether a kernel in low precision runs wherever one can, even if one of 16 bits is faster alone: inside a block
                quantisation may cost less than between 16-bit tensors.
        Raises:
            Unfusable: no kernel that may run is right, or not the one that was chosen before.
        """
        chosen = self._fastest(spec, m, feature_major, kernel, low)
        name = chosen.report.kernel
        can_add = spec.normed and (feature_major or _row_norm_adds(spec))
        if not can_add or labeled(name)[0].fuses_epilogue:
            return chosen
        with_bias = (
            not feature_major or name != DENSE
        )  # cuBLAS adds one to rows only, the others add it before they store
        alone = self._fastest(spec.before_norm(with_bias=with_bias), m, feature_major, name, low)
        report = replace(chosen.report, residual=False, relative_error=alone.report.relative_error)
        return ChosenProduct(alone.product, report, True, None if with_bias else spec.weight.bias)

    def _fastest(self, spec: ProductSpec, m: int, feature_major: bool, kernel: str | None, low: bool) -> ChosenProduct:
        """Of the kernels that are right, or the one that was chosen before."""
        tuning = ProductTuning(spec, m, feature_major, self.precision)
        if kernel is not None or not self.times_on(tuning.problem.device):
            return self._first_right(tuning, self._candidates(tuning, kernel), None, low)
        work = Work.of(spec, tuning.problem, self.precision.name)
        equal, nearly = self.timed.equal(work), self.timed.nearly_equal(work)
        if equal is None and not self.dense and (late := too_late(tuning.name, LAYER)) is not None:
            raise Unfusable(f"has no kernel for {tuning.name}: {late}")
        if equal is not None:
            fastest = equal.fastest(dense_allowed=self.choice.dense_allowed, low=low)
            candidates = self._candidates(tuning, None, only(fastest))
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

    def _first_right(
        self, tuning: ProductTuning, candidates: list[Candidate], times: TimedProduct | None, low: bool
    ) -> ChosenProduct:
        """The fastest candidate that is right, the first one where nothing was timed; with `low` those in low precision first.

        Raises:
            Unfusable: none is.
        """
        latencies = {} if times is None else times.latencies_us
        # untimed ones last: they failed in the product whose times these are (without times the order stays)
        ordered = sorted(candidates, key=lambda candidate: latencies.get(candidate.label, math.inf))
        if low:
            ordered.sort(key=lambda candidate: candidate.entry.precision == "none")
        for candidate in ordered:
            if (product := tuning.product(candidate)) is not None:
                return ChosenProduct(product, tuning.report(product, times))
        reasons = "; ".join(f"{name}: {why}" for name, why in tuning.unsupported.items()) or "none may run"
        raise Unfusable(f"has no kernel for {tuning.name}: {reasons}")

    def times_on(self, device: torch.device) -> bool:
        """Whether kernels are timed at all."""
        return self.on_cpu or (device.type == "cuda" and self.choice.mode != "reference")

    def _candidates(
        self, tuning: ProductTuning, kernel: str | None, why_not: Callable[[str], str | None] = any_kernel
    ) -> list[Candidate]:
        """Those that may run; `why_not` gives the reason of each that is not to be tried."""
        weight, problem = tuning.spec.weight, tuning.problem
        dense, unsupported = low_dense_candidates(weight, problem, self.choice, self.precision)
        if self.dense or weight.stored is None or (kernel is not None and is_dense(kernel)):
            tuning.unsupported = unsupported
            dense.append(dense_candidate(weight))
            planned = [candidate for candidate in dense if candidate.label == kernel]
            return planned or (dense if kernel is None else dense[-1:])
        sparse, tuning.unsupported = sparse_candidates(weight, problem, self.choice, why_not, self.precision)
        if kernel is not None:
            return [candidate for candidate in sparse if candidate.label == kernel]
        if not (self.choice.dense_allowed and self.times_on(problem.device)):
            # where no kernel can run, dense does; where they are only not tried, the caller asks again
            return sparse if sparse or why_not is not any_kernel else [*dense, dense_candidate(weight)]
        tuning.unsupported |= unsupported
        dense.append(dense_candidate(weight))
        reasons = {candidate.label: why_not(candidate.label) for candidate in dense}
        tuning.unsupported |= {label: reason for label, reason in reasons.items() if reason is not None}
        allowed = [candidate for candidate in dense if reasons[candidate.label] is None]
        if not (sparse or allowed) and why_not is any_kernel:
            return dense
        return [*sparse, *allowed]

    def _times(
        self, tuning: ProductTuning, candidates: list[Candidate], work: Work, nearly: TimedProduct | None
    ) -> TimedProduct:
        """Time the candidates, and dense beside them also where it may not run; those that fail are unsupported from then on."""
        wanted = list(candidates)
        if all(candidate.label != DENSE for candidate in wanted) and (nearly is None or nearly.why_not(DENSE) is None):
            wanted.append(dense_candidate(tuning.spec.weight))
        if nearly is not None:  # the fastest first: slow ones are then given up soon
            wanted.sort(key=lambda candidate: nearly.latencies_us.get(candidate.label, math.inf))
        latencies, products = {}, []
        for candidate in wanted:  # built, compiled and checked beside other processes, of which each timing stops all
            if candidate.label == DENSE and (known_us := self.timed.dense_us(work)) is not None:
                latencies[DENSE] = known_us
            elif (product := tuning.product(candidate)) is not None:
                products.append(product)
        launches, fastest_us = {}, math.inf
        with alone(tuning.problem.device):
            for product in products:
                name = product.kernel_name
                try:
                    time = self._time(product, tuning, SLOWER * fastest_us)
                except Exception as raised:  # as where it is checked: another one does the work
                    tuning.reject(name, failure_reason(raised))
                    continue
                self.timed.timings += 1
                latencies[name] = time.latency_us
                if time.relative_error is not None:
                    tuning.checked_again(name, time.relative_error)
                in_use = launch_of(product, tuning.problem)
                launches[name] = time.launches[:MOST_LAUNCHES] or ((in_use,) if in_use is not None else ())
                if not is_dense(name):
                    fastest_us = min(fastest_us, time.latency_us)
        like = None if nearly is None else nearly.name
        timed = TimedProduct(work, latencies, launches, dict(tuning.unsupported), like)
        return self.timed.add(timed) if latencies else timed  # of a product without times others have nothing

    def _time(self, product: FusedProduct, tuning: ProductTuning, at_most_us: float) -> KernelTime:
        if self.on_cpu and tuning.problem.device.type == "cpu":
            return time_on_any_device(product, *tuning.operands)
        launches, check = tuning.launches.get(product.kernel_name, ()), tuning.check.evaluate
        return time_layer(product, *tuning.operands, at_most_us=at_most_us, launches=launches, check=check)


def _row_norm_adds(spec: ProductSpec) -> bool:
    """Whether the kernel of row-major norms takes what this product gives."""
    weight = spec.weight.weight
    return rows_unsupported_reason(len(weight), weight.dtype, weight.device) is None


# How long the products of encoder blocks take under other masks: for a search, which builds no network for each of
# them.

Layers = tuple[str, ...]


class ProductTimes:
    """Times products as the pass over blocks would build them: joined, with their epilogues, in the layouts of their place.

    Args:
        net: with dense weights, in eval mode, on the device and in the dtype that are measured; stays as it is.
        inputs: keyword arguments of the net, the batch that is measured.
        choice: which kernels may run.
    Attributes:
        chains: container -> those of its blocks that can be rewritten, in order.
        products: block -> the Linears of each of its products where all are dense, by their names in the network.
    """

    def __init__(self, net: nn.Module, inputs: Mapping[str, Any], choice: KernelChoice) -> None:
        self._net, self._choice = net, choice
        self._captures = BlockCaptures()
        self._chooser = ProductChooser(choice, on_cpu=True)
        found = find_chains(net)
        blocks = [name for names in found.values() for name in names]
        self._calls = observe_calls(net, blocks, inputs)
        linears = [
            f"{block}.{name}"
            for block in blocks
            for name, module in net.get_submodule(block).named_modules()
            if isinstance(module, nn.Linear)
        ]
        self._rows = {name: seen.problem.m for name, seen in observe_problems(net, dict(inputs), linears).items()}
        self.products: dict[str, list[Layers]] = {}
        for name in blocks:
            try:
                prepared = self._captures.prepare(net, name, self._calls.get(name), self._rows, {}, {})
            except Unfusable:
                continue
            self.products[name] = [spec.weight.layers for spec in prepared.specs]
        rewritten = {chain: [name for name in names if name in self.products] for chain, names in found.items()}
        self.chains = {chain: names for chain, names in rewritten.items() if names}

    def group(self, block: str) -> Hashable:
        """What equal blocks have in common."""
        return self._captures.groups[block]

    def of(
        self, block: str, formats: Mapping[str, SparseFormat], masks: Mapping[str, Tensor], layout: str
    ) -> list[ProductReport]:
        """The fastest kernel of each product of a block, with its time.

        Args:
            formats, masks: of its pruned Linears, as of `fuse_blocks`; the others are dense.
            layout: of the residual stream.
        Raises:
            Unfusable: no kernel is right, or the block cannot be rewritten with these masks.
        """
        prepared = self._captures.prepare(self._net, block, self._calls[block], self._rows, formats, masks)
        feature_major = layout == "feature_major"
        return [
            self._chooser.choose(spec, self._rows[spec.weight.layers[0]], feature_major=feature_major).report
            for spec in prepared.specs
        ]
