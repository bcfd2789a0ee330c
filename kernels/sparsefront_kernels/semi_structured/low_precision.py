"""`semi_structured_fp8` and `semi_structured_int8`: 2:4 products in low precision on sparse tensor cores, through cuSPARSELt.

cuSPARSELt multiplies the values; scales and epilogue follow in a separate pass, or fused in a compiled graph. Only int8 supports
a scale per output in the product; a single scale would make PyTorch wait for the GPU. The product is W · Xᵀ; row-major Y uses its
transposed store. An infinity or NaN in X reaches the outputs that keep its input.

    fp8     sums in bfloat16, or in float32 where Y is float16 or float32: they do not fit into float16
    int8    sums · scale of the output / 128 in Y's dtype, or in int32 where Y is float32
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry, UnsupportedProblem
from sparsefront_kernels.operands import contiguous_at_16_bytes
from sparsefront_kernels.problem import Y_FEATURE_MAJOR, Problem
from sparsefront_kernels.quantized.epilogue import finished
from sparsefront_kernels.quantized.quantize import PRECISIONS, VALUE_DTYPES, Quantized, quantize
from sparsefront_kernels.quantized.reference import dtype_unsupported_reason
from sparsefront_kernels.quantized.weight import (
    QuantizedWeight,
    check_quantized_operands,
    multiplied,
    output_dtype,
    pack_quantized,
)
from sparsefront_kernels.semi_structured.cusparselt import (
    DEFAULT,
    MOST_ELEMENTS,
    MOST_ROWS,
    TOLERANCE,
    Algorithm,
    CusparseltProblem,
    fastest_elsewhere,
    in_order,
    random_rows,
    right_or_default,
    right_under_load,
    searched,
    time_each,
)
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.tuning import TunedLaunches

VERSION = 1
ROW_MULTIPLE = 16  # required by cuSPARSELt for M in 8-bit types; M is padded
WEIGHT_MULTIPLE = 32  # and for N and K
CAPABILITY = {"fp8": (8, 9), "int8": (8, 0)}
ALPHA = 1 / 128  # factor on int8 sums, so that the largest fits into float16
NUMBERS = 24  # algorithms on an H200, to try if the library's search fails


@dataclass(frozen=True, eq=False)
class CusparseltQuantizedWeight:
    """A weight in cuSPARSELt's layout, in e4m3 or int8.

    Args:
        n, k: outputs and inputs of the weight.
        compressed: values and metadata in one opaque tensor.
        scales: float32 [N, 1], one per output.
        alpha: float32 [N], factor applied by the product itself; None: no factor.
        input_order: int32 [K], the order of its inputs, in which X must be; None: ascending.
        whole: the same values as [N, K] on the CPU, for checks.
    """

    n: int
    k: int
    compressed: Tensor
    scales: Tensor
    alpha: Tensor | None
    input_order: Tensor | None
    whole: QuantizedWeight

    @property
    def precision(self) -> str:
        """Either "fp8" or "int8"."""
        return self.whole.precision


def pack_for_cusparselt(stored: SemiStructuredFormat, precision: str) -> CusparseltQuantizedWeight:
    """Quantize per output and compress on the format's CUDA device.

    Raises:
        UnsupportedProblem: the format is on a CPU, where cuSPARSELt cannot pack.
    """
    if stored.device.type != "cuda":
        raise UnsupportedProblem(
            f"semi_structured_{precision}: packs on a CUDA device, the weight is on {stored.device}"
        )
    weight = pack_quantized(stored, precision)
    order = stored.input_order
    values = in_order(weight.values, order)
    with torch.cuda.device_of(values):
        return CusparseltQuantizedWeight(
            *stored.shape,
            torch._cslt_compress(values),
            weight.scales,
            weight.scales.flatten() * ALPHA if precision == "int8" else None,
            order,
            QuantizedWeight(weight.n, weight.k, weight.values.cpu(), weight.scales.cpu(), weight.dtype),
        )


def semi_structured_product(
    x: Tensor | Quantized,
    packed: CusparseltQuantizedWeight,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual; other arguments and result as in `dense_fp8`.

    Args:
        x: padded if M is not a multiple of 16, and copied if its inputs are permuted.
        layout: "row_major" or "row_to_feature", of Y and the residual.
    """
    dtype, by_output = output_dtype(x, packed.whole), layout in Y_FEATURE_MAJOR
    quantized = x if isinstance(x, Quantized) else quantize(x, packed.precision)
    like_x = QuantizedWeight(packed.n, packed.k, packed.compressed, packed.scales, dtype)
    check_quantized_operands(quantized, like_x, bias)
    m = quantized.values.shape[0]
    if m == 0:
        return packed.scales.new_empty((packed.n, 0) if by_output else (0, packed.n), dtype=dtype)
    sums_dtype, scaled = sums_in(packed.precision, dtype)
    sums = semi_structured_sums(
        quantized.values,
        packed.compressed,
        packed.alpha if scaled else None,
        packed.input_order,
        packed.n,
        sums_dtype,
        by_output,
    )
    y = finished(
        sums[:, :m].t() if by_output else sums[:m],
        bias,
        activation,
        residual.t() if by_output and residual is not None else residual,
        dtype,
        row_scales=quantized.row_scales(),
        output_scales=None if scaled else packed.scales,
        factor=1 / ALPHA if scaled else 1.0,
    )
    return y.t() if by_output else y


def sums_in(precision: str, dtype: torch.dtype) -> tuple[torch.dtype, bool]:
    """Dtype of the product for a Y of this dtype, and whether it includes the scales of outputs."""
    if precision == "fp8":
        return (torch.bfloat16 if dtype == torch.bfloat16 else torch.float32), False
    return (torch.int32, False) if dtype == torch.float32 else (dtype, True)


@custom_op("semi_structured_sums")
def semi_structured_sums(
    x: Tensor,
    compressed: Tensor,
    alpha: Tensor | None,
    input_order: Tensor | None,
    n: int,
    dtype: torch.dtype,
    by_output: bool,
) -> Tensor:
    """The product of the values alone, with M rounded up to 16, by the algorithm measured fastest.

    Args:
        x: e4m3 or int8 [M, K], M at least 1.
        compressed, alpha, input_order: as in the packed weight.
        n: outputs.
        dtype: of the sums.
        by_output: whether the sums are [N, M], else [M, N].
    """
    k = x.shape[1]
    x = in_order(x, input_order)
    with torch.cuda.device_of(x):
        operand = contiguous_at_16_bytes(padded(x))
        described = _described(operand.shape[0], k, n, dtype, by_output)
        launches = ALGORITHMS[x.dtype]
        if by_output:
            search = partial(_search_sums, compressed, operand, alpha, dtype)
            algorithm = launches.launch_searched(described, x.device, search)
        else:  # its algorithms are not searched in this process
            algorithm = launches.launch_for(described, x.device)
        return _sums(compressed, operand, alpha, dtype, by_output, algorithm)


@semi_structured_sums.register_fake
def _(x, compressed, alpha, input_order, n, dtype, by_output):
    rows = padded_rows(x.shape[0])
    return x.new_empty((n, rows) if by_output else (rows, n), dtype=dtype)


def _sums(
    compressed: Tensor, x: Tensor, alpha: Tensor | None, dtype: torch.dtype, by_output: bool, algorithm: Algorithm
) -> Tensor:
    settings = {"alpha": alpha, "out_dtype": dtype, "transpose_result": not by_output}
    return torch._cslt_sparse_mm(compressed, x.t(), **settings, **asdict(algorithm))


def _search_sums(compressed: Tensor, x: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Algorithm | None:
    """The algorithm for sums [N, M], from products of random numbers in the dtype of x [M, K]."""
    precision = next(name for name, held in VALUE_DTYPES.items() if held == x.dtype)
    like = quantize(random_rows(x.shape, x.device), precision).values
    find = partial(searched, compressed, like.t(), alpha, dtype)
    return right_or_default(find, partial(_sums, compressed, like, alpha, dtype, True), dtype)


def padded_rows(m: int) -> int:
    """M rounded up to what cuSPARSELt supports in 8 bits."""
    return -(-m // ROW_MULTIPLE) * ROW_MULTIPLE


def padded(x: Tensor) -> Tensor:
    """X [M, K] with rows of zeros up to `padded_rows`."""
    missing = padded_rows(x.shape[0]) - x.shape[0]
    return pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype) if missing else x


def _described(rows: int, k: int, n: int, dtype: torch.dtype, by_output: bool) -> CusparseltProblem:
    return CusparseltProblem(rows, k, n, dtype, x_feature_major=False, y_row_major=not by_output)


@dataclass(frozen=True, eq=False)
class LowPrecisionAlgorithms(TunedLaunches):
    """Like other kernels' launches, but the library determines what is worth timing, and all of it is checked first."""

    def candidates(self, packed: CusparseltQuantizedWeight, problem: Problem) -> Sequence[Algorithm]:
        """The correct ones of the library's search result and the default algorithm, or of all algorithms if the search fails.

        With the transposed store, of the fastest that another process timed. Nothing else may run during timing.
        """
        if problem.m == 0:
            return [DEFAULT]
        dtype, scaled = sums_in(packed.precision, problem.dtype)
        by_output = problem.layout in Y_FEATURE_MAJOR
        x = padded(quantize(torch.randn(problem.m, problem.k, device=problem.device), packed.precision).values)
        alpha = packed.alpha if scaled else None
        with torch.cuda.device_of(x):
            if not by_output:
                algorithms = [*fast_with_transposed_store(packed.precision, problem), DEFAULT]
            else:
                try:
                    one = self.searched(packed, problem)
                    algorithms = [one or searched(packed.compressed, x.t(), alpha, dtype), DEFAULT]
                except RuntimeError:
                    algorithms = [Algorithm(number) for number in range(NUMBERS)]
            expected = _expected(packed, x, scaled)
            expected = expected if by_output else expected.t()
            return [
                one
                for one in dict.fromkeys(algorithms)
                if right_under_load(
                    partial(_sums, packed.compressed, x, alpha, dtype, by_output, one), expected, TOLERANCE[dtype]
                )
            ]


_OTHER_PROCESS = f"import sys; from {__name__} import time_transposed_store as time; time(sys.argv[1])"


def fast_with_transposed_store(precision: str, problem: Problem) -> list[Algorithm]:
    """As `cusparselt.fast_with_transposed_store`, in a precision."""
    return fastest_elsewhere(_OTHER_PROCESS, problem, precision=precision)


def time_transposed_store(problem: str) -> None:
    """Time algorithms in the other process, as `cusparselt.time_transposed_store`.

    Args:
        problem: a JSON object of m, k, n, dtype (of Y), precision and device.
    """
    asked = json.loads(problem)
    torch.cuda.set_device(asked["device"])
    dtype, scaled = sums_in(asked["precision"], getattr(torch, asked["dtype"]))
    weight, x = torch.randn(asked["n"], asked["k"], device="cuda"), torch.randn(asked["m"], asked["k"], device="cuda")
    weight.view(asked["n"], -1, 4)[..., :2] = 0
    quantized = quantize(weight, asked["precision"])
    compressed, values = torch._cslt_compress(quantized.values), padded(quantize(x, asked["precision"]).values)
    alpha = quantized.scales.flatten() * ALPHA if scaled else None
    time_each(range(NUMBERS), partial(_sums, compressed, values, alpha, dtype, False))


def _expected(packed: CusparseltQuantizedWeight, x: Tensor, scaled: bool) -> Tensor:
    """float64 [N, M]: the sums, times alpha if scaled."""
    values = in_order(packed.whole.values.to(x.device), packed.input_order)
    sums = values.double() @ x.double().t()
    return sums * packed.scales.double() * ALPHA if scaled else sums


def _algorithms(precision: str) -> LowPrecisionAlgorithms:
    return LowPrecisionAlgorithms(
        f"semi_structured_{precision}",
        VERSION,
        Algorithm,
        describe=lambda packed, problem: _described(
            padded_rows(problem.m),
            problem.k,
            problem.n,
            sums_in(precision, problem.dtype)[0],
            problem.layout in Y_FEATURE_MAJOR,
        ),
        worth_timing=lambda problem, num_sms: [DEFAULT],
    )


ALGORITHMS = {dtype: _algorithms(precision) for precision, dtype in VALUE_DTYPES.items()}


def _multiplied(x: Tensor | Quantized, packed: CusparseltQuantizedWeight) -> tuple[Tensor, Tensor]:
    whole, device = packed.whole, packed.scales.device
    return multiplied(
        x, QuantizedWeight(whole.n, whole.k, whole.values.to(device), whole.scales.to(device), whole.dtype)
    )


def _unsupported(stored: SparseFormat, problem: Problem, precision: str) -> str | None:
    if problem.n % WEIGHT_MULTIPLE or problem.k % WEIGHT_MULTIPLE:
        shape = [problem.n, problem.k]
        return f"cuSPARSELt needs N and K in multiples of {WEIGHT_MULTIPLE} in 8 bits, the weight is {shape}"
    if problem.m > MOST_ROWS or problem.m * max(problem.k, problem.n) >= MOST_ELEMENTS:
        return f"cuSPARSELt takes X of {MOST_ROWS} rows, and X and Y of less than 2^31 elements"
    reason = dtype_unsupported_reason(problem)
    if reason:
        return reason
    reason = cuda_unsupported_reason(problem, minimum_capability=CAPABILITY[precision])
    if reason:
        return reason
    return None if torch.backends.cusparselt.is_available() else "this PyTorch was built without cuSPARSELt"


def _entry(precision: str) -> KernelEntry:
    return KernelEntry(
        name=f"semi_structured_{precision}",
        family="semi_structured",
        product=semi_structured_product,
        unsupported=partial(_unsupported, precision=precision),
        pack=partial(pack_for_cusparselt, precision=precision),
        requires_cuda=True,
        layouts=("row_major", "row_to_feature"),
        fuses_epilogue=True,
        tunable=ALGORITHMS[VALUE_DTYPES[precision]],
        precision=precision,
        takes_scales=("row", "static") if precision == "fp8" else ("row",),
        multiplied=_multiplied,
    )


FP8_ENTRY, INT8_ENTRY = (_entry(precision) for precision in PRECISIONS)
