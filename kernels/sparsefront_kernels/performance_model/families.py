"""The work of each kernel, by its name without layout and number format."""

from collections.abc import Callable

from sparsefront_kernels.performance_model import (
    cublas,
    gathered_cuda,
    gathered_simt,
    gathered_small_m,
    gathered_triton,
)
from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Work

# kernel -> (product, rates) -> work, or None where the kernel does not take the product
FAMILIES: dict[str, Callable[[Product, DeviceRates], Work | None]] = {
    "gathered_cuda": gathered_cuda.work,
    "gathered_simt": gathered_simt.work,
    "gathered_small_m": gathered_small_m.work,
    "gathered_triton": gathered_triton.work,
    "cublas": cublas.work,
}
_ALIKE = {"bf16": "fp16"}  # number formats with the same rates


def family_of(kernel: str) -> str | None:
    """The kernel of `FAMILIES` with whose name this one begins, or None where nothing is known of it."""
    return next((name for name in FAMILIES if kernel.startswith(name)), None)


def constants_key(kernel: str, dtype: str) -> str | None:
    """Under which a kernel's constants are kept: "gathered_cuda fp16"; None where nothing is known of it."""
    family = family_of(kernel)
    if family == "cublas" and dtype == "tf32":
        family = kernel  # TF32 tensor cores take operands in one order only, so that each layout is another kernel
    return family and f"{family} {_ALIKE.get(dtype, dtype)}"
