"""`semi_structured_torch`: the 2:4 product on sparse tensor cores, through PyTorch's cuSPARSELt calls.

PyTorch wraps these two calls in a tensor subclass, which picks CUTLASS by a global flag (it rejects sm_90) and does not
pass through `torch.compile`. The calls themselves take and give plain tensors, so an op of our own holds them.
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
ROW_MULTIPLE = 8  # cuSPARSELt's rule for M in 16-bit types (4 would do in 32-bit ones), which is met by padding
WEIGHT_MULTIPLE = 16  # cuSPARSELt's rule for N and K in 16-bit types
MOST_ROWS = 2_097_120  # seen on an H200 with CUDA 13.0, whatever N and K; more are "not supported"
MOST_ELEMENTS = 2**31
CHECKS = 100  # runs that an algorithm has to survive: some are right only now and then
TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 5e-3, torch.int32: 1e-6}  # of sums
LOAD = 1024  # M, N and K of the products that run next to these checks


@dataclass(frozen=True, eq=False)
class CusparseltWeight:
    """A weight in cuSPARSELt's own layout.

    Args:
        n, k: outputs and inputs of the weight.
        compressed: values and metadata in one opaque tensor.
        input_order: int32 [K], the order of its inputs, in which X has to come; None: ascending.
    """

    n: int
    k: int
    compressed: Tensor
    input_order: Tensor | None


def pack_for_cusparselt(stored: SemiStructuredFormat) -> CusparseltWeight:
    """Compress on the format's CUDA device.

    Raises:
        UnsupportedProblem: the format lives on a CPU, where cuSPARSELt cannot pack.
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
    if reason := cuda_unsupported_reason(problem, minimum_capability=(8, 0)):
        return reason
    if not torch.backends.cusparselt.is_available():
        return "this PyTorch was built without cuSPARSELt"
    return None


def semi_structured_torch(
    x: Tensor, packed: CusparseltWeight, bias: Tensor | None, *, x_feature_major: bool, y_feature_major: bool
) -> Tensor:
    """Y = X · Wᵀ + bias; cuSPARSELt computes W · Xᵀ, so that nothing is transposed where X and Y are feature-major.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16 or bfloat16 as the weight. It is copied where its inputs have an
            order of their own, it is not contiguous and aligned, or M is no multiple of 8.
        bias: [N], any float dtype, or None.
    Returns:
        [N, M] where y_feature_major, a row side by side in memory. [M, N] otherwise: of row-major X the transpose of such an
        [N, M], since cuSPARSELt's own transposed store is slow to set up; of feature-major X by that transposed store,
        contiguous, for readers of rows such as attention.
    Raises:
        ValueError: operands that do not fit together.
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
    """Y, not yet written, with the strides that the product has."""
    m = x.shape[1 if x_feature_major else 0]
    if x_feature_major and not y_feature_major:
        return x.new_empty(m, n)
    by_output = x.new_empty(n, padded_rows(m))[:, :m]
    return by_output if y_feature_major else by_output.t()


def padded_rows(m: int) -> int:
    """M as cuSPARSELt takes it."""
    return -(-m // ROW_MULTIPLE) * ROW_MULTIPLE


def _padded(x: Tensor, *, dim: int) -> Tensor:
    """X with zeros up to the number of rows that cuSPARSELt takes: X itself where it has them, which `pad` would copy."""
    missing = padded_rows(x.shape[dim]) - x.shape[dim]
    return pad(x, (0, missing) if dim == 1 else (0, 0, 0, missing)) if missing else x


def _product(compressed: Tensor, x: Tensor, bias: Tensor | None, problem: "CusparseltProblem") -> Tensor:
    """W · X [K, M] + bias[:, None], or its transpose, by the algorithm that was measured to be the fastest."""
    if problem.y_row_major:  # its algorithms are not searched in this process
        algorithm = ALGORITHMS.launch_for(problem, x.device)
    else:
        algorithm = ALGORITHMS.launch_searched(problem, x.device, partial(_search_product, compressed, x))
    return torch._cslt_sparse_mm(compressed, x, bias=bias, transpose_result=problem.y_row_major, **asdict(algorithm))


@dataclass(frozen=True, order=True)
class Algorithm:
    """What PyTorch's `_cslt_sparse_mm` passes on to cuSPARSELt.

    Args:
        alg_id: number of the algorithm; its meaning is the library's own.
        split_k: parts of the inputs that are added up separately.
        split_k_mode: how the parts are joined; -1: the library's choice.
    """

    alg_id: int = 0
    split_k: int = 1
    split_k_mode: int = -1


DEFAULT = Algorithm()


def searched(
    compressed: Tensor, x: Tensor, alpha: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Algorithm:
    """What cuSPARSELt's search finds for W · x; it times its algorithms, so that nothing else may run beside it.

    Args:
        compressed: from `torch._cslt_compress`.
        x: [K, M] in the strides of the product; M a multiple of 8.
        alpha, out_dtype: of the product in low precision.
    """
    library = getattr(torch._C, "_cusparselt", None)
    if hasattr(library, "mm_search"):
        return Algorithm(*library.mm_search(compressed, x, None, alpha, out_dtype, False)[:3])
    # PyTorch's older function tells only a part of it
    settings = {} if out_dtype is None else {"alpha": alpha, "out_dtype": out_dtype}
    return Algorithm(int(torch._cslt_sparse_mm_search(compressed, x, **settings)))


def _search_product(compressed: Tensor, x: Tensor) -> Algorithm | None:
    """The algorithm for W · x, from products of random numbers with the strides of x [K, M]."""
    like = torch.empty_like(x).copy_(random_rows(x.shape, x.device))

    def run(algorithm: Algorithm) -> Tensor:
        return torch._cslt_sparse_mm(compressed, like, **asdict(algorithm))

    return right_or_default(partial(searched, compressed, like), run, x.dtype)


def random_rows(shape: Sequence[int], device: torch.device) -> Tensor:
    """Normal numbers, float32, that leave the process's random numbers as they are."""
    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(0))


def right_or_default(
    search: Callable[[], Algorithm], run: Callable[[Algorithm], Tensor], dtype: torch.dtype
) -> Algorithm | None:
    """What a search finds, if its product agrees with the default algorithm's under load; else that one. None: it failed.

    Args:
        run: the product by an algorithm, of this dtype.
    """
    try:
        algorithm = search()
        right = algorithm == DEFAULT or right_under_load(
            partial(run, algorithm), run(DEFAULT).double(), TOLERANCE[dtype]
        )
    except RuntimeError as error:  # out of memory, too
        log.warning("cuSPARSELt's search failed, its default algorithm runs: %s", str(error).splitlines()[0])
        return None
    return algorithm if right else DEFAULT


def right_under_load(run: Callable[[], Tensor], expected: Tensor, allowed: float) -> bool:
    """Whether a product is right each of `CHECKS` times while other products use the GPU.

    Args:
        run: the product, on the current stream of the current device; one that raises is not right.
        expected: of its shape, float64.
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
    """What decides which algorithm is the fastest.

    Args:
        m, k, n, dtype: of the product; the library numbers the algorithms of each type anew.
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
        """Kept inputs of an output."""
        return self.k / 2


@dataclass(frozen=True, eq=False)
class CusparseltAlgorithms(TunedLaunches):
    """As the other kernels' launches, but that the library itself says what is worth timing."""

    def candidates(self, packed: CusparseltWeight, problem: Problem) -> Sequence[Algorithm]:
        """What the library's search finds, and its default algorithm; with the transposed store the fastest of them all."""
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
    """Whether the transposed store is wanted: where X is row-major, Y is a transposed view instead."""
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

# Algorithms with the transposed store are timed in a process of their own, since some of them end it. The library's own search
# does not serve here: it ended in an illegal instruction for a small product (H200, CUDA 13.0, torch 2.11), after which a
# process can use the GPU no more.
MOST_TRANSPOSED = 2  # algorithms that are worth timing again beside the default one
LONGEST_S = 30.0
TRANSPOSED_NUMBERS = 8  # in bfloat16 on an H200; float16, where a call takes a quarter of a second, is not asked for
SAMPLES = 5
_OTHER_PROCESS = f"import sys; from {__name__} import time_transposed_store as time; time(sys.argv[1])"


def fast_with_transposed_store(problem: Problem) -> list[Algorithm]:
    """The fastest of the algorithms that ran in the other process before one ended it; none where it timed nothing.

    Args:
        problem: X is [K, M]; its device is a CUDA device.
    """
    asked = {"m": problem.m, "k": problem.k, "n": problem.n, "dtype": str(problem.dtype).removeprefix("torch.")}
    asked["device"] = torch.cuda.current_device() if problem.device.index is None else problem.device.index
    return fastest_elsewhere(_OTHER_PROCESS, asked)


def fastest_elsewhere(program: str, asked: dict[str, Any]) -> list[Algorithm]:
    """The `MOST_TRANSPOSED` fastest algorithms that a program in another process timed before it ended.

    Args:
        program: Python source that prints a JSON line of alg_id and latency_us for each.
        asked: its argument, as JSON.
    """
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
        printed, said = ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as late:
        printed, said = (late.stdout or b"").decode(), f"not within {LONGEST_S:g} s"
    timed = [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    if not timed:
        log.warning("cuSPARSELt's algorithms with the transposed store: none was timed: %s", said.strip()[-200:])
    timed.sort(key=lambda one: one["latency_us"])
    return [Algorithm(one["alg_id"]) for one in timed[:MOST_TRANSPOSED]]


def time_transposed_store(problem: str) -> None:
    """Time algorithm after algorithm by replays of a graph, until one of them breaks the device; runs in the other process.

    Prints a JSON line for each algorithm that runs: its number, and microseconds.

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
    """Time a product with algorithm after algorithm by replays of a graph; print a JSON line for each that runs.

    The process ends where one breaks the device.
    """
    from sparsefront_kernels.bench.timing import time_calls  # measuring is no part of a product

    for number in numbers:
        try:
            latency_us = time_calls([partial(product, Algorithm(number))], samples=SAMPLES).median_us
        except RuntimeError as error:
            if "CUDA error" in str(error) and "not supported" not in str(error):
                os._exit(1)  # the device is lost to this process, which has nothing to tidy up
            continue  # there is no such algorithm, or it does not support this product
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
