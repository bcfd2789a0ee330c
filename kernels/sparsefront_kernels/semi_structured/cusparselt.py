"""`semi_structured_torch`: the 2:4 product on sparse tensor cores, through PyTorch's cuSPARSELt calls.

PyTorch wraps these calls in a tensor subclass, which selects CUTLASS by a global flag (it rejects sm_90) and breaks
`torch.compile`. The calls themselves use plain tensors, so our own op wraps them.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import UnsupportedProblem
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import check_operands, contiguous_at_16_bytes
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.tuning import TunedLaunches

log = logging.getLogger(__name__)
KERNEL = "semi_structured_torch"
VERSION = 3
ROW_MULTIPLE = 8  # required by cuSPARSELt for M in 16-bit types; M is padded
WEIGHT_MULTIPLE = 16  # required by cuSPARSELt for N and K in 16-bit types
MOST_ROWS = 2_097_120  # observed on an H200 with CUDA 13.0 for any N and K; more are "not supported"
MOST_ELEMENTS = 2**31
CHECKS = 100  # runs of an algorithm that must be right: some are only sometimes
TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 5e-3, torch.int32: 1e-6}  # of sums
LOAD = 1024  # M, N and K of the products that run concurrently with these checks


@dataclass(frozen=True, eq=False)
class CusparseltWeight:
    """A weight in cuSPARSELt's own layout.

    Args:
        n, k: outputs and inputs of the weight.
        compressed: values and metadata in one opaque tensor.
        input_order: int32 [K], the order of its inputs, in which X must be; None: ascending.
    """

    n: int
    k: int
    compressed: Tensor
    input_order: Tensor | None


def pack_for_cusparselt(stored: SemiStructuredFormat) -> CusparseltWeight:
    """Compress on the format's CUDA device.

    Raises:
        UnsupportedProblem: the format is on a CPU, where cuSPARSELt cannot pack.
    """
    if stored.device.type != "cuda":
        raise UnsupportedProblem(f"{KERNEL}: packs on a CUDA device, the weight is on {stored.device}")
    with torch.cuda.device_of(stored.values):
        return CusparseltWeight(*stored.shape, torch._cslt_compress(stored.arranged()), stored.input_order)


def unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """Why cuSPARSELt, as PyTorch exposes it, does not support a problem, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"cuSPARSELt takes float16 or bfloat16 here, not {problem.dtype}"
    if problem.n % WEIGHT_MULTIPLE or problem.k % WEIGHT_MULTIPLE:
        return f"cuSPARSELt needs N and K in multiples of {WEIGHT_MULTIPLE}, the weight is {[problem.n, problem.k]}"
    if problem.m > MOST_ROWS or problem.m * max(problem.k, problem.n) >= MOST_ELEMENTS:
        return f"cuSPARSELt takes X of {MOST_ROWS} rows, and X and Y of less than 2^31 elements"
    if problem.layout == "feature_to_row" and problem.dtype == torch.float16:
        return "cuSPARSELt's transposed store keeps the processor busy for 0.25 s a call in float16, and is slower than dense"
    reason = cuda_unsupported_reason(problem, minimum_capability=(8, 0))
    if reason:
        return reason
    if not torch.backends.cusparselt.is_available():
        return "this PyTorch was built without cuSPARSELt"
    return None


def semi_structured_torch(
    x: Tensor, packed: CusparseltWeight, bias: Tensor | None, *, x_feature_major: bool, y_feature_major: bool
) -> Tensor:
    """Y = X · Wᵀ + bias; cuSPARSELt computes W · Xᵀ, so feature-major X and Y need no transpose.

    Args:
        x: [M, K], or [K, M] if x_feature_major; float16 or bfloat16 like the weight. Copied if its inputs are permuted, it is not
            contiguous and aligned, or M is not a multiple of 8.
        bias: [N], any float dtype, or None.
    Returns:
        [N, M] with contiguous rows if y_feature_major. Else [M, N]: for row-major X the transpose of such an [N, M], since
        cuSPARSELt's transposed store is slow to set up; for feature-major X contiguous, by that store, for readers of rows
        such as attention.
    Raises:
        ValueError: incompatible operands.
    """
    check_operands(x, packed.compressed, bias, k=packed.k, n=packed.n, feature_major=x_feature_major)
    y = _empty_y(x, packed.n, x_feature_major, y_feature_major)
    if y.numel() == 0:
        return y
    rows = 1 if x_feature_major else 0
    if packed.input_order is not None:
        x = x.index_select(1 - rows, packed.input_order)
    m = x.shape[rows]
    operand = contiguous_at_16_bytes(_padded(x, dim=rows))
    bias = bias if bias is None else contiguous_at_16_bytes(bias.to(x.dtype))
    y_row_major = x_feature_major and not y_feature_major
    with torch.cuda.device_of(x):
        problem = CusparseltProblem(m, packed.k, packed.n, x.dtype, x_feature_major, y_row_major)
        product = _product(packed.compressed, operand if x_feature_major else operand.t(), bias, problem)
    if y_row_major:
        return product[:m]
    return product[:, :m] if y_feature_major else product.t()[:m]


def _empty_y(x: Tensor, n: int, x_feature_major: bool, y_feature_major: bool) -> Tensor:
    """An empty Y with the strides of the product."""
    m = x.shape[1 if x_feature_major else 0]
    if x_feature_major and not y_feature_major:
        return x.new_empty(m, n)
    by_output = x.new_empty(n, padded_rows(m))[:, :m]
    return by_output if y_feature_major else by_output.t()


def in_order(matrix: Tensor, order: Tensor | None) -> Tensor:
    """Columns of an 8-bit matrix permuted by an order (int [K]), the matrix itself for None."""
    return matrix if order is None else matrix.view(torch.uint8).index_select(1, order).view(matrix.dtype)


def padded_rows(m: int) -> int:
    """M rounded up to what cuSPARSELt supports."""
    return -(-m // ROW_MULTIPLE) * ROW_MULTIPLE


def _padded(x: Tensor, *, dim: int) -> Tensor:
    """X with rows of zeros up to `padded_rows`; X itself if there are none to add, which `pad` would copy."""
    missing = padded_rows(x.shape[dim]) - x.shape[dim]
    return pad(x, (0, missing) if dim == 1 else (0, 0, 0, missing)) if missing else x


def _product(compressed: Tensor, x: Tensor, bias: Tensor | None, problem: "CusparseltProblem") -> Tensor:
    """W · X [K, M] + bias[:, None], or its transpose, by the algorithm measured fastest."""
    if problem.y_row_major:  # its algorithms are not searched in this process
        algorithm = ALGORITHMS.launch_for(problem, x.device)
    else:
        algorithm = ALGORITHMS.launch_searched(problem, x.device, partial(_search_product, compressed, x))
    return torch._cslt_sparse_mm(compressed, x, bias=bias, transpose_result=problem.y_row_major, **asdict(algorithm))


@dataclass(frozen=True, order=True)
class Algorithm:
    """Settings that PyTorch's `_cslt_sparse_mm` passes to cuSPARSELt.

    Args:
        alg_id: number of the algorithm, defined by the library.
        split_k: parts of the inputs that are accumulated separately.
        split_k_mode: how the parts are combined; -1: the library's choice.
    """

    alg_id: int = 0
    split_k: int = 1
    split_k_mode: int = -1


DEFAULT = Algorithm()


def searched(
    compressed: Tensor, x: Tensor, alpha: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Algorithm:
    """The result of cuSPARSELt's search for W · x; it times its algorithms, so nothing else may run meanwhile.

    Args:
        compressed: from `torch._cslt_compress`.
        x: [K, M] with the strides of the product; M a multiple of 8.
        alpha, out_dtype: for a product in low precision.
    """
    library = getattr(torch._C, "_cusparselt", None)
    if hasattr(library, "mm_search"):
        return Algorithm(*library.mm_search(compressed, x, None, alpha, out_dtype, False)[:3])
    # PyTorch's older function returns only a part of it
    settings = {} if out_dtype is None else {"alpha": alpha, "out_dtype": out_dtype}
    return Algorithm(int(torch._cslt_sparse_mm_search(compressed, x, **settings)))


def _search_product(compressed: Tensor, x: Tensor) -> Algorithm | None:
    """The algorithm for W · x, from products of random numbers with the strides of x [K, M]."""
    like = torch.empty_like(x).copy_(random_rows(x.shape, x.device))

    def run(algorithm: Algorithm) -> Tensor:
        return torch._cslt_sparse_mm(compressed, like, **asdict(algorithm))

    return right_or_default(partial(searched, compressed, like), run, x.dtype)


def random_rows(shape: Sequence[int], device: torch.device) -> Tensor:
    """Normally distributed float32 numbers, without changing the process's random state."""
    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(0))


def right_or_default(
    search: Callable[[], Algorithm], run: Callable[[Algorithm], Tensor], dtype: torch.dtype
) -> Algorithm | None:
    """The result of a search if its product agrees with the default algorithm's under load, else the default; None: it failed.

    Args:
        run: the product by an algorithm, in this dtype.
    """
    try:
        algorithm = search()
        right = algorithm == DEFAULT or right_under_load(
            partial(run, algorithm), run(DEFAULT).double(), TOLERANCE[dtype]
        )
    except RuntimeError as error:  # including out of memory
        log.warning("cuSPARSELt's search failed, its default algorithm runs: %s", str(error).splitlines()[0])
        return None
    return algorithm if right else DEFAULT


def right_under_load(run: Callable[[], Tensor], expected: Tensor, allowed: float) -> bool:
    """Whether a product is right in all of `CHECKS` runs while other products use the GPU.

    Args:
        run: the product, on the current stream of the current device; an exception counts as wrong.
        expected: float64, of its shape.
        allowed: relative error (Frobenius).
    """
    bound = allowed * torch.linalg.norm(expected)
    worst, side = expected.new_zeros(()), torch.cuda.Stream()
    load = random_rows((LOAD, LOAD), expected.device).half()
    side.wait_stream(torch.cuda.current_stream())
    try:
        for _ in range(CHECKS):
            with torch.cuda.stream(side):
                torch.mm(load, load)
            worst = torch.maximum(worst, torch.linalg.norm(run().double() - expected))  # NaN stays
    except RuntimeError:
        return False
    torch.cuda.current_stream().wait_stream(side)
    return bool(worst <= bound)


@dataclass(frozen=True)
class CusparseltProblem:
    """The properties of a product that determine the fastest algorithm.

    Args:
        m, k, n, dtype: of the product; algorithms are numbered per dtype.
        x_feature_major: whether X is [K, M].
        y_row_major: whether Y is stored as [M, N] rather than [N, M].
    """

    m: int
    k: int
    n: int
    dtype: torch.dtype
    x_feature_major: bool
    y_row_major: bool

    @property
    def shape(self) -> str:
        layouts = f"x_feature_major={int(self.x_feature_major)} y_row_major={int(self.y_row_major)}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"m={padded_rows(self.m)} k={self.k} n={self.n} dtype={dtype} {layouts} kept="

    @property
    def amount(self) -> float:
        """Kept inputs per output."""
        return self.k / 2


@dataclass(frozen=True, eq=False)
class CusparseltAlgorithms(TunedLaunches):
    """Like other kernels' launches, but the library determines what is worth timing."""

    def candidates(self, packed: CusparseltWeight, problem: Problem) -> Sequence[Algorithm]:
        """The result of the library's search and its default algorithm; with the transposed store, the fastest of all."""
        rows = padded_rows(problem.m)
        if rows == 0:
            return [DEFAULT]
        if _y_row_major(problem):
            return list(dict.fromkeys([*fast_with_transposed_store(problem), DEFAULT]))
        columns = torch.randn(problem.k, rows, dtype=problem.dtype, device=problem.device)
        x = columns if problem.layout in X_FEATURE_MAJOR else columns.t().contiguous().t()
        with torch.cuda.device_of(x):
            algorithm = self.searched(packed, problem) or searched(packed.compressed, x)
            return list(dict.fromkeys([algorithm, DEFAULT]))


def _y_row_major(problem: Problem) -> bool:
    """Whether to use the transposed store: for row-major X, Y is a transposed view instead."""
    return problem.layout == "feature_to_row"


ALGORITHMS = CusparseltAlgorithms(
    KERNEL,
    VERSION,
    Algorithm,
    describe=lambda packed, problem: CusparseltProblem(
        problem.m,
        problem.k,
        problem.n,
        problem.dtype,
        x_feature_major=problem.layout in X_FEATURE_MAJOR,
        y_row_major=_y_row_major(problem),
    ),
    worth_timing=lambda problem, num_sms: [DEFAULT],
)

# Algorithms with the transposed store are timed in a separate process, since some of them crash it. So does the library's own
# search: an illegal instruction for a small product (H200, CUDA 13.0, torch 2.11), after which a process cannot use the GPU.
MOST_TRANSPOSED = 2  # algorithms worth timing again besides the default one
LONGEST_S = 30.0
TRANSPOSED_NUMBERS = 8  # in bfloat16 on an H200; float16, which takes a quarter of a second per call, is unsupported
SAMPLES = 5
_OTHER_PROCESS = f"import sys; from {__name__} import time_transposed_store as time; time(sys.argv[1])"


def fast_with_transposed_store(problem: Problem) -> list[Algorithm]:
    """The fastest of the algorithms that ran in the other process before one crashed it, possibly none.

    Args:
        problem: X is [K, M]; its device is a CUDA device.
    """
    return fastest_elsewhere(_OTHER_PROCESS, problem)


def fastest_elsewhere(program: str, problem: Problem, **others: Any) -> list[Algorithm]:
    """The `MOST_TRANSPOSED` fastest algorithms that a program in another process timed before it ended.

    Args:
        program: Python source that prints a JSON line of alg_id and latency_us for each algorithm.
        problem, others: passed to it as one JSON object, `time_transposed_store` has its keys.
    """
    asked = {"m": problem.m, "k": problem.k, "n": problem.n, "dtype": str(problem.dtype).removeprefix("torch.")}
    asked["device"] = torch.cuda.current_device() if problem.device.index is None else problem.device.index
    asked |= others
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", program, json.dumps(asked)]
    try:
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        printed, errors = ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as late:
        printed, errors = (late.stdout or b"").decode(), f"not within {LONGEST_S:g} s"
    timed = [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    if not timed:
        log.warning("cuSPARSELt's algorithms with the transposed store: none was timed: %s", errors.strip()[-200:])
    timed.sort(key=lambda one: one["latency_us"])
    return [Algorithm(one["alg_id"]) for one in timed[:MOST_TRANSPOSED]]


def time_transposed_store(problem: str) -> None:
    """Time algorithms one after the other until one breaks the device; runs in the other process.

    Prints a JSON line with number and microseconds of each algorithm that runs.

    Args:
        problem: a JSON object of m, k, n, dtype and device.
    """
    asked = json.loads(problem)
    torch.cuda.set_device(asked["device"])
    like = {"dtype": getattr(torch, asked["dtype"]), "device": "cuda"}
    weight = torch.randn(asked["n"], asked["k"], **like)
    weight.view(asked["n"], -1, 4)[..., :2] = 0
    compressed, x = torch._cslt_compress(weight), torch.randn(asked["k"], padded_rows(asked["m"]), **like)
    product = partial(torch._cslt_sparse_mm, compressed, x, transpose_result=True)
    time_each(range(TRANSPOSED_NUMBERS), lambda algorithm: product(**asdict(algorithm)))


def time_each(numbers: Iterable[int], product: Callable[[Algorithm], Tensor]) -> None:
    """Time a product with algorithms one after the other by graph replays; print a JSON line for each that runs.

    Exits if one breaks the device.
    """
    from sparsefront_kernels.bench.timing import time_calls  # products do not need it

    for number in numbers:
        try:
            latency_us = time_calls([partial(product, Algorithm(number))], samples=SAMPLES).median_us
        except RuntimeError as error:
            if "CUDA error" in str(error) and "not supported" not in str(error):
                os._exit(1)  # this process cannot use the device any more, and has nothing to clean up
            continue  # no such algorithm, or it does not support this product
        print(json.dumps({"alg_id": number, "latency_us": latency_us}), flush=True)


ENTRY = kernel_entry(
    KERNEL,
    "semi_structured",
    weight=CusparseltWeight,
    run=semi_structured_torch,
    output=_empty_y,
    pack=pack_for_cusparselt,
    unsupported=unsupported_reason,
    layouts=("row_major", "feature_major", "feature_to_row"),
    tunable=ALGORITHMS,
)
