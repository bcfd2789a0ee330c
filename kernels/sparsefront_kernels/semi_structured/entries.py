"""Kernels of 2:4 weights."""

from sparsefront_kernels.epilogue import rebuilt_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.quantized.reference import reference_entry
from sparsefront_kernels.semi_structured import cusparselt, torchao
from sparsefront_kernels.semi_structured.low_precision import FP8_ENTRY, INT8_ENTRY

ENTRIES = (
    KernelEntry("semi_structured_reference", "semi_structured", rebuilt_product, is_reference=True),
    cusparselt.ENTRY,
    reference_entry("semi_structured", "fp8"),
    FP8_ENTRY,
    torchao.ENTRY,
    reference_entry("semi_structured", "int8"),
    INT8_ENTRY,
)
