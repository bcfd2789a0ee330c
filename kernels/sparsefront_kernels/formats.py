"""Every storage format by the name of its family; apart from the registry, since weights are stored where no kernel runs."""

from sparsefront_kernels.blocked import FORMAT as BLOCKED
from sparsefront_kernels.blocked_2_4 import FORMAT as BLOCKED_2_4
from sparsefront_kernels.csr import FORMAT as CSR
from sparsefront_kernels.dense import FORMAT as DENSE
from sparsefront_kernels.ell import FORMAT as ELL
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered import FORMAT as GATHERED
from sparsefront_kernels.gathered_2_4 import FORMAT as GATHERED_2_4
from sparsefront_kernels.gathered_overlay import FORMAT as GATHERED_OVERLAY
from sparsefront_kernels.n_m import FORMAT as N_M
from sparsefront_kernels.semi_structured import FORMAT as SEMI_STRUCTURED

FORMATS: dict[str, type[SparseFormat]] = {
    stored.family: stored
    for stored in (
        DENSE,
        GATHERED,
        GATHERED_OVERLAY,
        GATHERED_2_4,
        BLOCKED,
        BLOCKED_2_4,
        N_M,
        SEMI_STRUCTURED,
        ELL,
        CSR,
    )
}
