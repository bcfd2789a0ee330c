"""Predicts latencies: between measurements where these reach, otherwise by the performance model."""

from dataclasses import dataclass

from sparsefront_kernels.performance_model.predict import known_error, predicted_with
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, device_rates
from sparsefront_kernels.prediction.table import LatencyTable, PredictedLatency, latency_table
from sparsefront_kernels.registry import entries

LAYOUT = "row_major"
DENSE = ("cublas", "cublas_wt")  # row-major products; the faster one counts


@dataclass(frozen=True)
class LatencyPredictor:
    """What is known of one GPU model.

    Args:
        gpu: the model's name, as torch gives it.
        table: measured times, or None.
        rates: rates and constants of the performance model, or None.
    """

    gpu: str
    table: LatencyTable | None
    rates: DeviceRates | None

    def predict(
        self, *, family: str, granularity: int, dtype: str, m: int, k: int, n: int, sparsity: float
    ) -> PredictedLatency | None:
        """The expected time of Y[M, N] = X[M, K] · W[N, K]ᵀ, X and Y row-major; None where neither source reaches.

        Arguments as `LatencyTable.predict`. It says which source it is of.
        """
        asked = {"granularity": granularity, "dtype": dtype, "m": m, "k": k, "n": n, "sparsity": sparsity}
        measured = self.table.predict(family=family, **asked) if self.table is not None else None
        return measured if measured is not None or self.rates is None else self._modelled(family, **asked)

    def _modelled(
        self, family: str, *, sparsity: float, granularity: int, dtype: str, **sizes: int
    ) -> PredictedLatency | None:
        """Of the fastest kernel that the model knows; the weight's tiles keep equally much."""
        sparse = Product(
            sparsity=sparsity, granularity=granularity, distribution="equal", dtype=dtype, layout=LAYOUT, **sizes
        )
        dense = Product(sparsity=0.0, granularity=0, distribution="", dtype=dtype, layout=LAYOUT, **sizes)
        dense_times = {name: predicted_with(name, dense, self.rates) for name in DENSE}
        times = {
            entry.name: latency_us
            for entry in entries()
            if entry.family == family and entry.layout == LAYOUT and entry.computes_in(dtype)
            if (latency_us := predicted_with(entry.name, sparse, self.rates)) is not None
        }
        if None in dense_times.values() or not times:
            return None
        best, best_dense = (min(found, key=found.__getitem__) for found in (times, dense_times))
        error = sum(known_error(name, dtype, self.rates) for name in (best, best_dense))
        return PredictedLatency(times[best], dense_times[best_dense], source="model", error=error)


def latency_predictor(gpu: str) -> LatencyPredictor | None:
    """Of a GPU model; None where nothing is known of it."""
    table, rates = latency_table(gpu), device_rates(gpu)
    return None if table is None and rates is None else LatencyPredictor(gpu, table, rates)
