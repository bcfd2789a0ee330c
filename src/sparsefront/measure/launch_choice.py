"""The launch parameters of a layer's kernel: those in use, and those worth timing where none were measured for its product."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsefront_kernels import Problem
from sparsefront_kernels.sparse_layer import SparseLayer
from sparsefront_kernels.tuning.tunable import Tunable
from torch import Tensor

log = logging.getLogger(__name__)
MOST = 4  # the kernel's own model puts the most promising first


@dataclass(frozen=True)
class LaunchChoice:
    """Launch parameters to try for one product.

    Args:
        tunable, packed, problem: the kernel's, and the packed weight and the product that they are for.
        candidates: the most promising first.
    """

    tunable: Tunable
    packed: object
    problem: Problem
    candidates: Sequence[Any]

    def use(self, launch: Any) -> None:
        """From the next call on, in this process; it does not count as measured."""
        self.tunable.try_out(self.packed, self.problem, launch)

    def keep(self, launch: Any, latency_us: float) -> None:
        """From the next call on, and in later processes where the user's table can be written."""
        self.tunable.remember(self.packed, self.problem, launch, latency_us)
        try:
            self.tunable.save(self.problem.device)
        except OSError as error:  # it is found again where it is needed
            log.warning("launch parameters of %s are not kept: %s", self.tunable.kernel, error)

    def use_none(self) -> None:
        """From the next call on what ran before `use`."""
        self.tunable.end_trial(self.packed, self.problem)


def untried_launches(layer: SparseLayer, output: Tensor, known: Sequence[Any] = ()) -> LaunchChoice | None:
    """What to try for this layer; None where its kernel has nothing to choose, or was measured or tried for such a product.

    Args:
        output: of the layer, which tells the rows of the product.
        known: launches that were fast for a product like this one: these alone are tried.
    """
    tunable, packed = layer.tunable
    if tunable is None:
        return None
    n, k = layer.format.shape
    problem = Problem(output.numel() // n, k, n, output.dtype, output.device, layer.kernel_layout)
    if known:
        return LaunchChoice(tunable, packed, problem, known)
    if tunable.measured(packed, problem) or tunable.on_trial(packed, problem):
        return None
    candidates = tunable.candidates(packed, problem)[:MOST]
    if len(candidates) > 1:
        return LaunchChoice(tunable, packed, problem, candidates)
    if candidates:  # nothing to time; and not to be looked for again, which takes a library's own search seconds
        tunable.try_out(packed, problem, candidates[0])
    return None


def assume_launch(layer: SparseLayer, problem: Problem, launch: Any) -> None:
    """Run this product with a launch that was fast for one like it, unless this one was measured or tried before.

    To predict the best of all launches takes a tenth of a second for thousands of work tiles.
    """
    tunable, packed = layer.tunable
    problem = replace(problem, layout=layer.kernel_layout)
    if tunable is None or tunable.measured(packed, problem) or tunable.on_trial(packed, problem):
        return
    tunable.try_out(packed, problem, launch)


def assume_none(layer: SparseLayer, problem: Problem) -> None:
    """Take back what was assumed or tried for this product."""
    tunable, packed = layer.tunable
    if tunable is not None:
        tunable.end_trial(packed, replace(problem, layout=layer.kernel_layout))


def launch_in_use(layer: SparseLayer, problem: Problem) -> dict[str, Any]:
    """The launch parameters by name with which the layer runs this product; empty where its kernel has none."""
    launch = launch_of(layer, problem)
    return {} if launch is None else asdict(launch)


def launch_of(layer: SparseLayer, problem: Problem) -> Any:
    """The launch parameters with which the layer runs this product; None where its kernel has none."""
    tunable, packed = layer.tunable
    return None if tunable is None else tunable.launch(packed, replace(problem, layout=layer.kernel_layout))
