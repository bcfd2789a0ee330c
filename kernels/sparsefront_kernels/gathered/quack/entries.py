"""QuACK as an entry of the registry: feature-major, the only layout that it gathers from."""

from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.quack.library import unsupported_reason
from sparsefront_kernels.gathered.quack.op import gathered_quack
from sparsefront_kernels.gathered.quack.packed_weight import QuackPackedWeight, pack_for_quack, tile_unsupported_reason
from sparsefront_kernels.gathered.quack.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem


def _product(x: Tensor, packed: QuackPackedWeight, bias: Tensor | None = None) -> Tensor:
    """X [K, M] → Y [N, M]; the bias is added by PyTorch, after the product was rounded."""
    y = gathered_quack(
        x,
        packed.panels,
        packed.kept,
        packed.offsets,
        packed.order,
        packed.rows,
        packed.n,
        packed.k,
        packed.consecutive,
    )
    return y if bias is None else y + bias.to(y.dtype)[:, None]


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return tile_unsupported_reason(stored.tile) or unsupported_reason(problem)


ENTRY = KernelEntry(
    name=KERNEL,
    family="gathered",
    product=_product,
    pack=pack_for_quack,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=("feature_major",),
    tunable=LAUNCHES,
)
