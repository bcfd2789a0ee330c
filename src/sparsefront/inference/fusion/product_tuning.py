"""One product while its kernel is chosen: each candidate is built and checked once."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefront_kernels import Problem
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import give_way
from sparsefront.inference.fusion.candidates import Candidate
from sparsefront.inference.fusion.correctness_check import FusedCorrectnessCheck
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.layout import in_layout, layout_name
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.report import ProductReport
from sparsefront.inference.fusion.timed_products import TimedProduct
from sparsefront.measure.launch_choice import assume_launch, assume_none, launch_in_use
from sparsefront.measure.memory import stored_bytes


class ProductTuning:
    """The candidates of one product.

    Attributes:
        unsupported: kernel -> why it cannot be used, or was not tried.
        launches: kernel -> launches that were fast in a product like this one; the first is used before any is timed.
    """

    def __init__(self, spec: ProductSpec, m: int, feature_major: bool) -> None:
        (n, k), like = spec.weight.weight.shape, spec.weight.weight
        layout = layout_name(
            x_feature_major=feature_major and spec.x_stream, y_feature_major=feature_major and spec.y_stream
        )
        self.spec, self.name = spec, "+".join(spec.weight.layers)
        self.problem = Problem(m, k, n, like.dtype, like.device, layout)
        self.check = FusedCorrectnessCheck(spec, m, feature_major=feature_major)
        self.unsupported: dict[str, str] = {}
        self.launches: Mapping[str, Sequence[Any]] = {}
        self._products: dict[str, tuple[FusedProduct, float]] = {}
        self._failed: dict[str, str] = {}

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
        if name not in self._products and name not in self._failed:
            give_way(self.problem.device)
            self._try(name, candidate)
        if name in self._failed:
            self.unsupported[name] = self._failed[name]  # a new record where candidates were looked for again
            return None
        return self._products[name][0]

    def _try(self, name: str, candidate: Candidate) -> None:
        product = None
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
            if launches := self.launches.get(name, ()):
                assume_launch(product, self.problem, launches[0])
            error, reason = self.check.evaluate(product)
        except Exception as raised:  # a kernel may fail in any way; another one does the work, and the record holds why
            reason = failure_reason(raised)
        if reason is not None:
            self.reject(name, reason)
            if product is not None:
                assume_none(product, self.problem)
        else:
            self._products[name] = (product, error)

    def reject(self, name: str, reason: str) -> None:
        """A kernel that cannot be used, or not after all."""
        self.unsupported[name] = self._failed[name] = reason
        self._products.pop(name, None)

    def checked_again(self, name: str, error: float) -> None:
        """The relative error of a kernel with the launch parameters that it has now."""
        self._products[name] = self._products[name][0], error

    def report(self, product: FusedProduct, times: TimedProduct | None) -> ProductReport:
        spec, problem = self.spec, self.problem
        latencies = {} if times is None else dict(times.latencies_us)
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
            timed_as=None if times is None or times.name == self.name else times.name,
            timed_like=None if times is None else times.like,
        )
