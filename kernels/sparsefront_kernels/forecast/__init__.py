"""What a sparse product will take beside a dense one: between measurements of the GPU, or by the time model."""

from sparsefront_kernels.forecast.forecaster import Forecaster, forecaster
from sparsefront_kernels.forecast.table import Forecast, ForecastTable, forecast_table

__all__ = ["Forecast", "ForecastTable", "Forecaster", "forecast_table", "forecaster"]
