"""What a sparse product will take beside a dense one, interpolated from what was measured on the GPU."""

from sparsefront_kernels.forecast.table import Forecast, ForecastTable, forecast_table

__all__ = ["Forecast", "ForecastTable", "forecast_table"]
