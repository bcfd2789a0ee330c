"""`semi_structured_fp8_torchao`: 2:4 products in e4m3 by torchao's CUTLASS kernel for Hopper; package torchao.

Unlike cuSPARSELt it applies the scales of rows and outputs itself, without a separate pass; cuSPARSELt's sums alone are faster
(experiments/low_precision). Source: torchao 0.18, `rowwise_scaled_linear_sparse_cutlass_f8f8`.
"""

import functools
import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry, UnsupportedProblem
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.epilogue import finished
from sparsefront_kernels.quantized.quantize import Quantized
from sparsefront_kernels.quantized.weight import (
    QuantizedWeight,
    check_quantized_operands,
    multiplied,
    output_dtype,
    pack_quantized,
    quantized_x,
)
from sparsefront_kernels.semi_structured.cusparselt import in_order
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat

KERNEL = "semi_structured_fp8_torchao"
EXTRA = "torchao"  # extra of sparsefront that installs it
CAPABILITY = (9, 0)  # compiled for sm_90a only
N_MULTIPLE, K_MULTIPLE = 64, 128  # tiles of metadata


@dataclass(frozen=True, eq=False)
class TorchaoWeight:
    """The weight as torchao's kernel reads it.

    Args:
        n, k: outputs and inputs of the weight.
        kept: float8_e4m3fn [N, K / 2].
        metadata: positions of the kept two of every four inputs, opaque.
        input_order: int32 [K], the order of its inputs, in which X must be; None: ascending.
        whole: the same values as [N, K], with a scale per output.
    """

    n: int
    k: int
    kept: Tensor
    metadata: Tensor
    input_order: Tensor | None
    whole: QuantizedWeight

    @property
    def precision(self) -> str:
        """Always "fp8"."""
        return self.whole.precision


def pack_for_torchao(stored: SemiStructuredFormat) -> TorchaoWeight:
    """Quantize per output and compress on the format's CUDA device.

    Raises:
        UnsupportedProblem: torchao cannot be imported, or the format is on a CPU.
    """
    if stored.device.type != "cuda":
        raise UnsupportedProblem(f"{KERNEL}: packs on a CUDA device, the weight is on {stored.device}")
    reason = package_unavailable_reason()
    if reason:
        raise UnsupportedProblem(f"{KERNEL}: {reason}")
    weight = pack_quantized(stored, "fp8")
    values = in_order(weight.values, stored.input_order)
    with torch.cuda.device_of(values):
        kept_values, metadata = torch.ops.torchao.to_sparse_semi_structured_cutlass_sm9x_f8(values)
    return TorchaoWeight(*stored.shape, kept_values, metadata, stored.input_order, weight)


def torchao_product(
    x: Tensor | Quantized,
    packed: TorchaoWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual; as `dense_fp8`. X is copied if its inputs are permuted."""
    dtype, quantized = output_dtype(x, packed.whole), quantized_x(x, packed.whole)
    check_quantized_operands(quantized, packed.whole, bias)
    m = quantized.values.shape[0]
    if m == 0:
        return packed.whole.scales.new_empty((0, packed.n), dtype=dtype)
    y = torch.ops.torchao.rowwise_scaled_linear_sparse_cutlass_f8f8(
        in_order(quantized.values, packed.input_order).contiguous(),
        quantized.row_scales().view(m),
        packed.kept,
        packed.metadata,
        packed.whole.scales.view(packed.n),
        None,
        dtype,
    )
    return finished(y, bias, activation, residual, dtype)


def _multiplied(x: Tensor | Quantized, packed: TorchaoWeight) -> tuple[Tensor, Tensor]:
    return multiplied(x, packed.whole)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.n % N_MULTIPLE or problem.k % K_MULTIPLE:
        return f"takes N in multiples of {N_MULTIPLE} and K of {K_MULTIPLE}, the weight is {[problem.n, problem.k]}"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    reason = cuda_unsupported_reason(problem, minimum_capability=CAPABILITY)
    if reason:
        return reason
    capability = torch.cuda.get_device_capability(problem.device)
    if capability != CAPABILITY:
        return "is compiled for compute capability 9.0 alone, this GPU has {}.{}".format(*capability)
    return package_unavailable_reason()


@functools.cache
def package_unavailable_reason() -> str | None:
    """Why torchao's kernel cannot be used, or None."""
    try:
        importlib.import_module("torchao.ops")  # registers torch.ops.torchao
        if not hasattr(torch.ops.torchao, "rowwise_scaled_linear_sparse_cutlass_f8f8"):
            return "this torchao was built without its kernels for Hopper"
    except ModuleNotFoundError:
        return f"torchao is not installed: it comes with sparsefront's extra `{EXTRA}`"
    except Exception as error:  # incompatible packages fail in many ways
        return f"torchao cannot be imported: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return None


ENTRY = KernelEntry(
    name=KERNEL,
    family="semi_structured",
    product=torchao_product,
    unsupported=_unsupported,
    pack=pack_for_torchao,
    requires_cuda=True,
    fuses_epilogue=True,
    precision="fp8",
    takes_scales=("row", "static"),
    multiplied=_multiplied,
)
