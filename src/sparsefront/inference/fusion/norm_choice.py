"""The kernel of each feature-major norm: right, and on a GPU the fastest at its real shape and in its layouts."""

import logging
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from sparsefront_kernels import Problem
from sparsefront_kernels.norm import kernels
from sparsefront_kernels.norm.launch import NormLaunch
from sparsefront_kernels.norm.tuning import LAUNCHES, NormProblem
from torch import nn

from sparsefront.errors import failure_reason
from sparsefront.forward_calls import before_forward
from sparsefront.gpu_sharing.access import give_way
from sparsefront.inference.fusion.find import BlockCall
from sparsefront.inference.fusion.fused_block import FusedBlock
from sparsefront.inference.fusion.fused_norm import FusedNorm
from sparsefront.inference.fusion.norm_trial import NormTrial
from sparsefront.inference.fusion.report import NormReport
from sparsefront.measure.kernel_timer import time_layer
from sparsefront.measure.launch_choice import LaunchChoice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeenNorm:
    """One call of a norm: the problem, and the launch that runs it."""

    norm: FusedNorm
    problem: NormProblem
    launch: NormLaunch


@contextmanager
def observed_norms(block: nn.Module) -> Iterator[list[SeenNorm]]:
    """While open, the list grows by each call of a feature-major norm that a kernel runs; plain PyTorch's are absent."""
    seen: list[SeenNorm] = []
    norms = {name: part for name, part in block.named_modules() if isinstance(part, FusedNorm)}

    def note(name: str, args: tuple, kwargs: dict) -> None:
        if (operands := norms[name].kernel_operands(*args, **kwargs)) is not None:
            problem = NormProblem.of(operands["x"], operands["residual"], operands["sums"] is not None)
            seen.append(SeenNorm(norms[name], problem, kernels.launch_in_use(**operands)))

    with before_forward(norms, note):
        yield seen


class NormChooser:
    """Times the kernels of norms, each distinct problem once, and keeps the fastest for this GPU model.

    A problem that was measured before, in this process or an earlier one, costs nothing; nor does one that a single kernel takes.
    Any other costs at most 4 recorded graphs: Triton's kernel and three divisions of the Hopper kernel. Each is first compared
    with the reference in float64, and left out where it is wrong, cannot be built or fails.

    Args:
        device: that the network is on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._timed: dict[NormProblem, tuple[dict[str, float], dict[str, str]]] = {}
        self._observed: set[Hashable] = set()

    def choose(
        self, blocks: Mapping[str, FusedBlock], calls: Mapping[str, BlockCall], groups: Mapping[str, Hashable]
    ) -> None:
        """Choose for the norms of blocks, of which those that are built, called and normalised alike are run once.

        Args:
            calls: what each block receives.
            groups: block -> what equal blocks have in common.
        """
        if not self.times():
            return
        for name, block in blocks.items():
            alike = groups[name], tuple(map(type, block.norms))
            if not block.norms or alike in self._observed:
                continue
            self._observed.add(alike)
            try:
                with observed_norms(block) as seen, torch.no_grad():
                    block(*calls[name].args, **calls[name].kwargs)
            except Exception as error:  # such a block is not chosen, and the norms of others are seen in them
                log.warning("the norms of block %s could not be observed: %s", name, failure_reason(error))
                continue
            for one in seen:
                self._choose(one)

    def times(self) -> bool:
        """Whether kernels are timed at all."""
        return self.device.type == "cuda"

    def report(self, seen: SeenNorm) -> NormReport:
        """The record of one norm: times and reasons where this pass found them."""
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
        give_way(self.device)
        trial = NormTrial(seen.norm, problem, self.device)
        candidates = LAUNCHES.candidates(problem, product)
        reasons = {launch: trial.unsupported_reason(launch) for launch in candidates}
        takes = [launch for launch, reason in reasons.items() if reason is None]
        unsupported = {str(launch): reason for launch, reason in reasons.items() if reason is not None}
        times: dict[NormLaunch, float] = {}
        for launch in takes if len(takes) > 1 else ():
            try:
                reason = trial.wrong_reason(launch)
                if reason is None:
                    times[launch] = time_layer(trial.candidate(launch), *trial.operands).latency_us
                    continue
            except (
                Exception
            ) as raised:  # a kernel may fail in any way; another one does the work, and the record holds why
                reason = failure_reason(raised)
            unsupported[str(launch)] = reason
            log.warning("norm %s: %s is left out: %s", problem, launch, reason)
        self._timed[problem] = {str(launch): time for launch, time in times.items()}, unsupported
        if times:
            best = min(times, key=times.__getitem__)
            LaunchChoice(LAUNCHES, problem, product, takes).keep(best, times[best])
            log.info("norm %s: %s, %.1f us", problem, best, times[best])
