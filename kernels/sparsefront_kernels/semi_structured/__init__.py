"""2:4, the one pattern that tensor cores skip by themselves."""

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.semi_structured import cusparselt
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat

FORMAT = SemiStructuredFormat
ENTRIES = (
    KernelEntry(
        name="semi_structured_reference",
        family="semi_structured",
        product=rebuilt_product,
        is_reference=True,
    ),
    cusparselt.ENTRY,
)

__all__ = ["ENTRIES", "FORMAT"]
