"""A kernel's predicted latency."""

from dataclasses import dataclass

from sparsefront_kernels.performance_model.families import FAMILIES, constants_key, family_of
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, device_rates
from sparsefront_kernels.performance_model.work import time_us


@dataclass(frozen=True)
class Prediction:
    """Of one kernel.

    Args:
        latency_us: predicted microseconds.
        error: share of the measurement by which nine in ten predictions were off at most, for (K, N) that the constants were
            not fitted to. Infinite where a fit saw one (K, N) only: constants fit a handful of rows whatever they are worth.
    """

    latency_us: float
    error: float


def predict(product: Product, kernel: str, gpu: str) -> Prediction | None:
    """Of a kernel on a GPU model.

    None where the model does not know the kernel or the GPU, where the kernel does not take the product, and where
    something that its time depends on was never fitted, such as a layout that was not measured.
    """
    rates = device_rates(gpu)
    return None if rates is None else predict_with(product, kernel, rates)


def predict_with(product: Product, kernel: str, rates: DeviceRates) -> Prediction | None:
    """The same with given rates."""
    key = constants_key(kernel, product.dtype)
    constants = rates.constants.get(key)
    if constants is None or product.m < 1 or (work := FAMILIES[family_of(kernel)](product, rates)) is None:
        return None
    if not work.constants <= constants.keys():
        return None
    return Prediction(time_us(work, constants), rates.errors.get(key, {}).get("held_out_p90", float("inf")))
