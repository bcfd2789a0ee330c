"""Which kernel works how."""

from collections.abc import Callable

from sparsefront_kernels.model import cublas, cuda_cores, hopper, skinny, triton
from sparsefront_kernels.model.product import Product
from sparsefront_kernels.model.rates import DeviceRates
from sparsefront_kernels.model.work import Work

# family -> (product, rates) -> work, or None where the kernel does not take the product
FAMILIES: dict[str, Callable[[Product, DeviceRates], Work | None]] = {
    "hopper": hopper.work,
    "cuda_cores": cuda_cores.work,
    "skinny": skinny.work,
    "triton": triton.work,
    "cublas": cublas.work,
}
# how a kernel's name begins -> its family; its layout ends the name
_BEGINNINGS = {
    "gathered_fp32_cuda": "cuda_cores",
    "gathered_skinny": "skinny",
    "gathered_cuda": "hopper",
    "gathered_triton": "triton",
    "gathered_tf32_triton": "triton",
    "cublas": "cublas",
}
_ALIKE = {"bf16": "fp16"}  # number formats with the same rates


def family_of(kernel: str) -> str | None:
    """The family of a kernel, or None where nothing is known of it."""
    return next((family for beginning, family in _BEGINNINGS.items() if kernel.startswith(beginning)), None)


def constants_key(kernel: str, dtype: str) -> str | None:
    """Under which a kernel's constants are kept: "hopper fp16"; None where nothing is known of it."""
    family = family_of(kernel)
    if family == "cublas" and dtype == "tf32":
        family = kernel  # TF32 tensor cores take operands in one order only, so that each layout is another kernel
    return family and f"{family} {_ALIKE.get(dtype, dtype)}"
