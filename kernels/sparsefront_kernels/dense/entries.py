"""Dense products, which all others are compared with."""

from dataclasses import replace

from sparsefront_kernels.blocked import sm90
from sparsefront_kernels.dense import cublaslt
from sparsefront_kernels.dense.format import dense_linear
from sparsefront_kernels.dense.low_precision import FP8_ENTRY, INT8_ENTRY
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry
from sparsefront_kernels.quantized.few_rows import few_rows_entry
from sparsefront_kernels.quantized.reference import reference_entry

ENTRIES = (
    KernelEntry("dense_linear", "dense", dense_linear, is_reference=True),
    cublaslt.ENTRY,
    replace(filled_entry(sm90.ENTRY, "dense"), name="dense_sm90"),  # every block: its epilogue has the exact GELU too
    reference_entry("dense", "fp8"),
    FP8_ENTRY,
    reference_entry("dense", "int8"),
    INT8_ENTRY,
    few_rows_entry("dense"),
)
