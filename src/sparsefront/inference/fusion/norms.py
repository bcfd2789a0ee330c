"""Choose a correct kernel for each feature-major norm, on a GPU the fastest at its real shape."""

import logging
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import torch
from sparsefront_kernels import Problem
from sparsefront_kernels.norm import add_layer_norm_columns_reference, layer_norm, layer_norm_columns_reference
from sparsefront_kernels.norm.layer_norm import LAUNCHES, NormLaunch, NormProblem
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import yield_gpu
from sparsefront.inference.autotune import Trial
from sparsefront.inference.fusion.calls import BlockCall
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.placement import FusedNorm
from sparsefront.inference.fusion.plan import NormReport
from sparsefront.measure.timers import LaunchChoice, time_layer
from sparsefront.networks import before_forward

# Candidates for one norm: random operands, the check against float64, and the module to time.

# Relative and absolute error of an element against the float64 norm of the rounded sums.
NORM_ERROR_LIMIT = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CHUNK_COLUMNS = 8192  # of the float64 norm at a time
MEAN = 1.0  # of the columns, in standard deviations: with a mean of zero, a kernel that does not subtract it would pass


class NormTrial:
    """Random operands of a norm's problem, in its layouts, and the check of candidates.

    Args:
        norm: gives the presence and dtypes of weight, bias and x_bias.
    """

    def __init__(self, norm: FusedNorm, problem: NormProblem, device: torch.device) -> None:
        self.problem, self.eps = problem, norm.eps
        self._generator = torch.Generator(device).manual_seed(0)
        vectors = {"weight": norm.weight, "bias": norm.bias, "x_bias": getattr(norm, "x_bias", None)}
        self.vectors = {name: self._like(vector) for name, vector in vectors.items()}
        self.x = self._matrix(problem.x_layout)
        self.residual = self._matrix(problem.residual_layout) if problem.residual else None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Arguments of a candidate."""
        return (self.x,) if self.residual is None else (self.x, self.residual)

    def unsupported_reason(self, launch: NormLaunch) -> str | None:
        """Why the launch does not support the operands, or None."""
        sums = self.x if self.problem.keep_sums else None
        return layer_norm.unsupported_reason(launch, self.x, **self.vectors, residual=self.residual, sums=sums)

    def candidate(self, launch: NormLaunch) -> "NormCandidate":
        return NormCandidate(launch, self.vectors, self.eps, self.problem.keep_sums)

    def evaluate(self, candidate: nn.Module) -> tuple[float, str | None]:
        """`wrong_reason` of a candidate as the check of a `Trial`, which tells no error."""
        assert isinstance(candidate, NormCandidate)
        return 0.0, self.wrong_reason(candidate.launch)

    @torch.no_grad()
    def wrong_reason(self, launch: NormLaunch) -> str | None:
        """Why the launch is wrong, or None: compares all elements with the float64 norm.

        Results are filled with NaN before, which catches unwritten elements.
        """
        y = self.x.new_full(self.x.shape, torch.nan)
        sums = torch.full_like(y, torch.nan) if self.problem.keep_sums else None
        layer_norm.run(launch, self.x, y, eps=self.eps, **self.vectors, residual=self.residual, sums=sums)
        weight, bias = (None if vector is None else vector.double() for vector in self._affine())
        for first in range(0, self.problem.m, CHUNK_COLUMNS):
            part = slice(first, first + CHUNK_COLUMNS)
            total = self._sums(part)
            truth = layer_norm_columns_reference(total.double(), weight, bias, self.eps)
            if not self._is_close(y[:, part], truth):
                return "differs from the float64 norm"
            if sums is not None and not self._is_close(sums[:, part], total.double()):
                return "keeps sums that differ from the float64 ones"
        return None

    def _sums(self, part: slice) -> Tensor:
        """The input of the normalization for a slice of columns, rounded as in the kernels."""
        if self.residual is None:
            return self.x[:, part]
        residual = self.residual[:, part]
        return add_layer_norm_columns_reference(
            self.x[:, part], self.vectors["x_bias"], residual, *self._affine(), self.eps
        )[1]

    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        return self.vectors["weight"], self.vectors["bias"]

    def _is_close(self, found: Tensor, truth: Tensor) -> bool:
        limit = NORM_ERROR_LIMIT[self.problem.dtype]
        return torch.allclose(found.double(), truth, rtol=limit, atol=limit)

    def _matrix(self, layout: str) -> Tensor:
        d, m = self.problem.d, self.problem.m
        shape = (d, m) if layout == "feature_major" else (m, d)
        generator, dtype = self._generator, self.problem.dtype
        drawn = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype).add_(MEAN)
        return drawn if layout == "feature_major" else drawn.t()

    def _like(self, vector: Tensor | None) -> Tensor | None:
        if vector is None:
            return None
        generator = self._generator
        return torch.randn(vector.shape, generator=generator, device=generator.device, dtype=vector.dtype)


class NormCandidate(nn.Module):
    """A norm with one launch: x [d, M], and the residual if there is one → the norm, and the sums if they are kept."""

    weight: Tensor | None
    bias: Tensor | None
    x_bias: Tensor | None

    def __init__(self, launch: NormLaunch, vectors: dict[str, Tensor | None], eps: float, keep_sums: bool) -> None:
        super().__init__()
        self.launch, self.eps, self.keep_sums = launch, eps, keep_sums
        for name, vector in vectors.items():
            self.register_buffer(name, vector)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        y = x.new_empty(x.shape)
        sums = torch.empty_like(y) if self.keep_sums else None
        vectors = {"weight": self.weight, "bias": self.bias, "x_bias": self.x_bias}
        layer_norm.run(self.launch, x, y, eps=self.eps, **vectors, residual=residual, sums=sums)
        return (y,) if sums is None else (y, sums)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeenNorm:
    """One call of a norm: its problem and launch."""

    norm: FusedNorm
    problem: NormProblem
    launch: NormLaunch


@contextmanager
def observe_norms(block: nn.Module) -> Iterator[list[SeenNorm]]:
    """Record calls of feature-major norms inside the context, without those that plain PyTorch runs."""
    seen: list[SeenNorm] = []
    norms = {name: part for name, part in block.named_modules() if isinstance(part, FusedNorm)}

    def note(name: str, args: tuple, kwargs: dict) -> None:
        operands = norms[name].kernel_operands(*args, **kwargs)
        if operands is not None:
            problem = NormProblem.of(operands["x"], operands["residual"], operands["sums"] is not None)
            seen.append(SeenNorm(norms[name], problem, layer_norm.launch_in_use(**operands)))

    with before_forward(norms, note):
        yield seen


class NormChooser:
    """Times the kernels of norms once per distinct problem, and stores the fastest for this GPU model.

    Problems that were measured before, in earlier processes too, or have a single candidate are not timed. Others time at most
    4 CUDA graphs: Triton's kernel and three launches of the Hopper kernel. Each is first compared with the float64
    reference, and skipped if it is wrong, cannot be built or fails.

    Args:
        device: of the network.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._timed: dict[NormProblem, tuple[dict[str, float], dict[str, str]]] = {}
        self._observed: set[Hashable] = set()

    def choose(
        self, blocks: Mapping[str, FusedBlock], calls: Mapping[str, BlockCall], groups: Mapping[str, Hashable]
    ) -> None:
        """Choose kernels for the norms of blocks; equal blocks are run once.

        Args:
            calls: block -> its call.
            groups: block -> key of its group of equal blocks.
        """
        if not self.times():
            return
        for name, block in blocks.items():
            alike = groups[name], tuple(map(type, block.norms))
            if not any(isinstance(norm, FusedNorm) for norm in block.norms) or alike in self._observed:
                continue
            self._observed.add(alike)
            try:
                with observe_norms(block) as seen, torch.no_grad():
                    block(*calls[name].args, **calls[name].kwargs)
            except Exception as error:  # such a block will not be chosen
                log.warning("the norms of block %s could not be observed: %s", name, failure_reason(error))
                continue
            for one in seen:
                self._choose(one)

    def times(self) -> bool:
        """Whether kernels are timed on this device."""
        return self.device.type == "cuda"

    def report(self, seen: SeenNorm) -> NormReport:
        """The report of one norm, with times and reasons if this pass timed it."""
        launch = asdict(seen.launch)
        latencies, unsupported = self._timed.get(seen.problem, ({}, {}))
        return NormReport(
            kernel=launch.pop("kernel"),
            launch={name: value for name, value in launch.items() if value},
            latency_us=latencies.get(str(seen.launch)),
            candidates=latencies,
            unsupported=unsupported,
        )

    def _choose(self, seen: SeenNorm) -> None:
        problem = seen.problem
        product = Problem(problem.m, problem.d, problem.d, problem.dtype, self.device, "feature_major")
        if problem in self._timed or LAUNCHES.measured(problem, product):
            return
        yield_gpu(self.device)
        norm = NormTrial(seen.norm, problem, self.device)
        candidates = {str(launch): launch for launch in LAUNCHES.candidates(problem, product)}
        reasons = {name: norm.unsupported_reason(launch) for name, launch in candidates.items()}
        takes = [name for name, reason in reasons.items() if reason is None]
        trial = Trial("", unsupported={name: reason for name, reason in reasons.items() if reason is not None})
        for name in takes if len(takes) > 1 else ():
            if trial.check(name, partial(norm.candidate, candidates[name]), norm.evaluate):
                trial.time(name, partial(time_layer, trial.modules[name], *norm.operands))
            if name in trial.unsupported:
                log.warning("norm %s: %s is left out: %s", problem, name, trial.unsupported[name])
        self._timed[problem] = times, _ = trial.latencies_us, trial.unsupported
        if times:
            best = min(times, key=times.__getitem__)
            launches = [candidates[name] for name in takes]
            LaunchChoice(LAUNCHES, problem, product, launches).keep(candidates[best], times[best])
            log.info("norm %s: %s, %.1f us", problem, best, times[best])
