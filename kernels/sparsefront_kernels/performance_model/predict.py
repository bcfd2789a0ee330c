"""A kernel's predicted latency."""

from sparsefront_kernels.performance_model.families import FAMILIES, constants_key, family_of
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, device_rates
from sparsefront_kernels.performance_model.work import time_us


def predicted_us(kernel: str, product: Product, gpu: str) -> float | None:
    """Predicted microseconds of a kernel on a GPU model.

    None where the model does not know the kernel or the GPU, where the kernel does not take the product, and where
    something that its time depends on was never fitted, such as a layout that was not measured.
    """
    rates = device_rates(gpu)
    return None if rates is None else predicted_with(kernel, product, rates)


def predicted_with(kernel: str, product: Product, rates: DeviceRates) -> float | None:
    """The same with given rates."""
    constants = rates.constants.get(constants_key(kernel, product.dtype))
    if constants is None or product.m < 1 or (work := FAMILIES[family_of(kernel)](product, rates)) is None:
        return None
    return time_us(work, constants) if work.constants <= constants.keys() else None


def known_error(kernel: str, dtype: str, rates: DeviceRates) -> float:
    """How far nine in ten predictions were from the measurement at most, as a share of it, for (K, N) not fitted to.

    Infinite where a fit saw one (K, N) only: constants fit a handful of rows whatever they are worth.
    """
    errors = rates.errors.get(constants_key(kernel, dtype), {})
    return errors.get("held_out_p90", float("inf"))
