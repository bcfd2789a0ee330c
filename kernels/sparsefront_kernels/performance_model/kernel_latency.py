"""A kernel's predicted latency, from its work, which is found by its name without layout and number format."""

from collections.abc import Callable
from dataclasses import dataclass

from sparsefront_kernels.performance_model import (
    cublas,
    gathered_simt,
    gathered_sm90,
    gathered_small_m,
    gathered_triton,
)
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates, device_rates
from sparsefront_kernels.performance_model.work import Work, time_us

# kernel -> (product, rates) -> work, or None where the kernel does not take the product
FAMILIES: dict[str, Callable[[Product, DeviceRates], Work | None]] = {
    "gathered_sm90": gathered_sm90.work,
    "gathered_simt": gathered_simt.work,
    "gathered_small_m": gathered_small_m.work,
    "gathered_triton": gathered_triton.work,
    "cublas": cublas.work,
}
_ALIKE = {"bf16": "fp16"}  # number formats with the same rates


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


def family_of(kernel: str) -> str | None:
    """The kernel of `FAMILIES` with whose name this one begins, or None where nothing is known of it."""
    return next((name for name in FAMILIES if kernel.startswith(name)), None)


def constants_key(kernel: str, dtype: str) -> str | None:
    """Under which a kernel's constants are kept: "gathered_sm90 fp16"; None where nothing is known of it."""
    family = family_of(kernel)
    if family == "cublas" and dtype == "tf32":
        family = kernel  # TF32 tensor cores take operands in one order only, so that each layout is another kernel
    return family and f"{family} {_ALIKE.get(dtype, dtype)}"
