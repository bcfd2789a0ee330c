"""The kernel of each product: right, and where there is a GPU the fastest at its real shape and in its layouts."""

import math
from dataclasses import dataclass, field, replace

import torch
from sparsefront_kernels import Problem, labeled
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import give_way
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.call import Unfusable
from sparsefront.inference.fusion.candidates import (
    DENSE,
    Candidate,
    dense_candidate,
    sparse_candidates,
    tile_lengths,
    work_grain,
)
from sparsefront.inference.fusion.correctness_check import FusedCorrectnessCheck
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.layout import in_layout, layout_name
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.product_weight import stored_parameters
from sparsefront.inference.fusion.report import ProductReport
from sparsefront.measure.cpu_timer import time_where_it_is
from sparsefront.measure.kernel_timer import time_layer
from sparsefront.measure.launch_choice import launch_in_use
from sparsefront.measure.memory import stored_bytes

TOLERANCE = 0.05  # of a tile's length, and of all together, within which products count as equal work


@dataclass(frozen=True)
class TimedProduct:
    """Times of one distinct product: `lengths` of its tiles, kernel -> microseconds."""

    name: str
    lengths: list[int]
    latencies_us: dict[str, float]


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
    """Chooses kernels one product after the other; products of equal work are timed once, each is checked.

    Args:
        choice: which kernels may run.
        dense: True for the baseline with every product dense.
        on_cpu: references are timed too, where there is no GPU: a search needs times of any device.
        timed: (problem and epilogue) -> what was timed of it.
    """

    choice: KernelChoice
    dense: bool = False
    on_cpu: bool = False
    timed: dict[tuple, list[TimedProduct]] = field(default_factory=dict)

    def choose(self, spec: ProductSpec, m: int, *, feature_major: bool, kernel: str | None = None) -> ChosenProduct:
        """The product with its kernel; a residual that the kernel cannot fuse is left to a feature-major norm behind it.

        Args:
            m: rows of X.
            feature_major: layout of the residual stream.
            kernel: chosen before; nothing is timed.
        Raises:
            Unfusable: no kernel that may run is right, or not the one that was chosen before.
        """
        chosen = self._fastest(spec, m, feature_major, kernel)
        name = chosen.report.kernel
        if not feature_major or not spec.normed or labeled(name)[0].fuses_epilogue:
            return chosen
        with_bias = name != DENSE  # cuBLAS adds one to rows only, the others add it before they store
        alone = self._fastest(spec.before_norm(with_bias=with_bias), m, feature_major, name)
        report = replace(chosen.report, residual=False, relative_error=alone.report.relative_error)
        return ChosenProduct(alone.product, report, True, None if with_bias else spec.weight.bias)

    def _fastest(self, spec: ProductSpec, m: int, feature_major: bool, kernel: str | None) -> ChosenProduct:
        """Of the kernels that are right, or the one that was chosen before."""
        tuning = _Tuning(spec, m, feature_major)
        candidates = self._candidates(tuning, kernel)
        times = self._times(tuning, candidates) if kernel is None and self.times_on(tuning.problem.device) else None
        latencies = {} if times is None else times.latencies_us
        # untimed ones last: they failed in the product whose times these are (without times the order stays)
        for candidate in sorted(candidates, key=lambda candidate: latencies.get(candidate.label, math.inf)):
            if (product := tuning.product(candidate)) is not None:
                timed_as = None if times is None or times.name == tuning.name else times.name
                return ChosenProduct(product, tuning.report(product, latencies, timed_as))
        reasons = "; ".join(f"{name}: {why}" for name, why in tuning.unsupported.items()) or "none may run"
        raise Unfusable(f"has no kernel for {tuning.name}: {reasons}")

    def times_on(self, device: torch.device) -> bool:
        """Whether kernels are timed at all."""
        return self.on_cpu or (device.type == "cuda" and self.choice.mode != "reference")

    def _candidates(self, tuning: "_Tuning", kernel: str | None) -> list[Candidate]:
        weight, dense = tuning.spec.weight, dense_candidate(tuning.spec.weight)
        if self.dense or weight.stored is None or kernel == DENSE:
            return [dense]
        sparse, unsupported = sparse_candidates(weight, tuning.problem, self.choice)
        tuning.unsupported |= unsupported
        if kernel is not None:
            return [candidate for candidate in sparse if candidate.label == kernel]
        dense_too = self.choice.dense_allowed and self.times_on(tuning.problem.device)
        return [*sparse, dense] if dense_too or not sparse else sparse

    def _times(self, tuning: "_Tuning", candidates: list[Candidate]) -> TimedProduct:
        """Times of an equal product, or those that are taken now."""
        spec = tuning.spec
        held = None if spec.weight.stored is None else repr(stored_parameters(spec.weight.stored))
        key = (tuning.problem, spec.activation, spec.residual, held, spec.weight.bias is not None)
        lengths = [] if spec.weight.stored is None else tile_lengths(spec.weight.stored)
        for known in self.timed.setdefault(key, []):
            if _equal_work(known.lengths, lengths, work_grain(spec.weight.stored)):
                return known
        # dense is timed beside the others also where it may not run
        beside = [] if any(candidate.label == DENSE for candidate in candidates) else [dense_candidate(spec.weight)]
        products = {candidate.label: tuning.product(candidate) for candidate in [*candidates, *beside]}
        timer = time_where_it_is if self.on_cpu else time_layer
        latencies = {
            name: timer(product, *tuning.operands).latency_us
            for name, product in products.items()
            if product is not None
        }
        self.timed[key].append(TimedProduct(tuning.name, lengths, latencies))
        return self.timed[key][-1]


class _Tuning:
    """The candidates of one product: each is built and checked once."""

    def __init__(self, spec: ProductSpec, m: int, feature_major: bool) -> None:
        (n, k), like = spec.weight.weight.shape, spec.weight.weight
        layout = layout_name(
            x_feature_major=feature_major and spec.x_stream, y_feature_major=feature_major and spec.y_stream
        )
        self.spec, self.name = spec, "+".join(spec.weight.layers)
        self.problem = Problem(m, k, n, like.dtype, like.device, layout)
        self.check = FusedCorrectnessCheck(spec, m, feature_major=feature_major)
        self.unsupported: dict[str, str] = {}
        self._products: dict[str, tuple[FusedProduct, float]] = {}

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """What the product is timed with: all rows, of which a check on a CPU looks at the first few."""
        few = self.check.operands
        repeats = -(-self.problem.m // len(few[0]))
        if repeats == 1:
            return few
        return tuple(self._laid_out_like(operand, operand.repeat(repeats, 1)[: self.problem.m]) for operand in few)

    @staticmethod
    def _laid_out_like(few: Tensor, rows: Tensor) -> Tensor:
        return in_layout(rows, feature_major=few.stride(0) == 1 and few.stride(1) != 1)

    def product(self, candidate: Candidate) -> FusedProduct | None:
        """The product through this kernel, None where it fails or is wrong."""
        name = candidate.label
        if name not in self._products and name not in self.unsupported:
            give_way(self.problem.device)
            self._try(name, candidate)
        return self._products[name][0] if name in self._products else None

    def _try(self, name: str, candidate: Candidate) -> None:
        try:
            product = FusedProduct(
                candidate.entry,
                candidate.format,
                self.spec.weight.bias,
                kernel_layout=candidate.layout,
                activation=self.spec.activation,
                x_feature_major=self.problem.layout in X_FEATURE_MAJOR,
                y_feature_major=self.problem.layout in Y_FEATURE_MAJOR,
            )
            error, reason = self.check.evaluate(product)
        except Exception as raised:  # a kernel may fail in any way; another one does the work, and the record holds why
            reason = failure_reason(raised)
        if reason is not None:
            self.unsupported[name] = reason
        else:
            self._products[name] = (product, error)

    def report(self, product: FusedProduct, latencies: dict[str, float], timed_as: str | None) -> ProductReport:
        spec, problem = self.spec, self.problem
        return ProductReport(
            layers=spec.weight.layers,
            kernel=product.kernel_name,
            family=product.format.family,
            m=problem.m,
            k=problem.k,
            n=problem.n,
            density=spec.density,
            layout=problem.layout,
            activation=spec.activation,
            residual=spec.residual,
            weight_bytes=stored_bytes(product),
            vanished_inputs=spec.vanished_inputs,
            vanished_outputs=spec.vanished_outputs,
            latency_us=latencies.get(product.kernel_name),
            candidates=latencies,
            unsupported=self.unsupported,
            launch=launch_in_use(product, problem),
            relative_error=self._products[product.kernel_name][1],
            timed_as=timed_as,
        )


def _equal_work(one: list[int], other: list[int], grain: int) -> bool:
    """Whether tile lengths, both descending, agree within the tolerance, each and all together."""
    if len(one) != len(other) or abs(sum(one) - sum(other)) > max(grain, TOLERANCE * max(sum(one), sum(other))):
        return False
    return all(abs(a - b) <= max(grain, TOLERANCE * max(a, b)) for a, b in zip(one, other, strict=True))
