"""The predicted product, and which inputs several tiles of a random weight keep together."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sparsefront_kernels.performance_model.rates import DeviceRates
from sparsefront_kernels.performance_model.work import Tiling, Work
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "tf32": 4}


@dataclass(frozen=True)
class Product:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ with a weight of tiles that keep random inputs.

    Args:
        sparsity: fraction of zeros of W.
        granularity: outputs that share their inputs; 0 for a dense weight.
        distribution: "equal" or "uneven", as the benchmark draws weights; others count as equal.
        dtype: fp16, bf16, fp32 or tf32.
        layout: of X and Y, one of `problem.LAYOUTS`.
    """

    m: int
    k: int
    n: int
    sparsity: float
    granularity: int
    distribution: str
    dtype: str
    layout: str

    @property
    def dense(self) -> "Product":
        """The same product with a dense weight."""
        return replace(self, sparsity=0.0, granularity=0, distribution="")

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def longest(self) -> float:
        """Ratio of the longest tile to the mean: uneven tiles keep from half to one and a half times the mean."""
        return 1.5 if self.distribution == "uneven" else 1.0

    @property
    def x_by_feature(self) -> bool:
        return self.layout in X_FEATURE_MAJOR

    @property
    def y_by_feature(self) -> bool:
        return self.layout in Y_FEATURE_MAJOR

    @property
    def least_bytes(self) -> float:
        """Bytes of values, X and Y, each moved once."""
        values = self.k * self.n * (1 - self.sparsity)
        return (values + self.m * (self.k + self.n)) * self.element_bytes

    def kept_by_any(self, outputs: int) -> float:
        """Fraction of the inputs that at least one of `outputs` neighboring outputs keeps; tiles are independent."""
        tiles = max(1, outputs // max(1, self.granularity))
        return 1 - self.sparsity**tiles

    def work(
        self,
        rates: DeviceRates,
        tilings: Iterable[Tiling],
        *,
        turns_x: bool = False,
        turns_y: bool = False,
        scattered: bool = False,
    ) -> Work:
        """The work of a kernel with these tilings.

        Args:
            turns_x, turns_y: whether X, or Y, is read and written once more to change its layout.
            scattered: whether X is gathered element by element.
        """
        return Work(
            tilings=tuple(tilings),
            num_sms=rates.num_sms,
            tera=rates.tflops(self.dtype),
            memory_us=rates.memory_us(self.least_bytes),
            longest=self.longest,
            turned_x_bytes=2 * self.m * self.k * self.element_bytes if turns_x else 0.0,
            turned_y_bytes=2 * self.m * self.n * self.element_bytes if turns_y else 0.0,
            scattered=scattered,
        )
