"""Predicted speedups on a GPU model: from measurements if they cover the product, else from the formula."""

from dataclasses import dataclass
from operator import attrgetter

from sparsefront_kernels.performance_model.kernel_latency import FAMILIES, Prediction, predict_with
from sparsefront_kernels.performance_model.latency_table import LatencyTable, table_for
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, rates_for

DENSE = ("cublas", "cublas_wt")  # row-major products; the faster one counts


@dataclass(frozen=True)
class PredictedSpeedup:
    """Predicted microseconds of a product, sparse and dense.

    Args:
        source: "measurements" (interpolated) or "model".
        error: relative error that the speedup may have, if known.
    """

    latency_us: float
    dense_us: float
    source: str = "measurements"
    error: float = 0.0

    @property
    def speedup(self) -> float:
        return self.dense_us / self.latency_us

    @property
    def may_win(self) -> bool:
        """Whether the speedup may exceed 1 within its error."""
        return self.speedup * (1 + self.error) > 1


@dataclass(frozen=True)
class PerformanceModel:
    """Predictions for one GPU model.

    Args:
        gpu: the model's name as reported by torch.
        rates: rates and constants of the formula, or None.
        table: measured latencies, or None.
    """

    gpu: str
    rates: DeviceRates | None
    table: LatencyTable | None = None

    def predict(self, product: Product, kernel: str) -> Prediction | None:
        """A kernel's latency by the formula; None under the same conditions as for the function `predict`."""
        return None if self.rates is None else predict_with(product, kernel, self.rates)

    def speedup(self, product: Product, family: str) -> PredictedSpeedup | None:
        """The family's fastest kernel against the faster row-major dense product; None if neither source covers them."""
        if self.table is not None and (measured := self.table.interpolated(product, family)) is not None:
            return PredictedSpeedup(*measured)
        kernels = [name for name in FAMILIES if name.startswith(f"{family}_")]
        sparse = [predicted for predicted in (self.predict(product, name) for name in kernels) if predicted is not None]
        dense = [
            predicted for predicted in (self.predict(product.dense, name) for name in DENSE) if predicted is not None
        ]
        if not sparse or len(dense) < len(DENSE):
            return None
        best, best_dense = (min(predicted, key=attrgetter("latency_us")) for predicted in (sparse, dense))
        error = best.error + best_dense.error
        return PredictedSpeedup(best.latency_us, best_dense.latency_us, source="model", error=error)


def performance_model(gpu: str) -> PerformanceModel | None:
    """The model of a GPU, possibly with rates and table of one that stands in for it; None if nothing is known."""
    rates, table = rates_for(gpu), table_for(gpu)
    return None if rates is None and table is None else PerformanceModel(gpu, rates, table)
