"""What can be tuned of a kernel: its launch parameters."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sparsefront_kernels.problem import Problem


class Tunable(Protocol):
    """Launch parameters of one kernel: what is worth timing for a problem, and what to use from now on.

    A kernel's layouts may share one, so that tuning in one of them tunes all.

    Attributes:
        kernel, version: under which `tuned_kernel` keeps its entries.
    """

    kernel: str
    version: int

    def candidates(self, packed: Any, problem: Problem) -> Sequence[Any]:
        """The launches worth timing (frozen dataclasses), best predicted first, on the current CUDA device.

        Args:
            packed: what the entry's `pack` gave.
        """
        ...

    def remember(self, packed: Any, problem: Problem, launch: Any, latency_us: float) -> None:
        """Use this launch for this problem from now on in this process; `tuned_kernel(...).save` keeps it."""
        ...

    def launch(self, packed: Any, problem: Problem) -> Any:
        """The launch in use for this problem: the one that was measured for it or for the nearest like it, or the untuned."""
        ...

    def measured(self, packed: Any, problem: Problem) -> bool:
        """Whether this very problem was measured on the GPU at hand, now or in an earlier process."""
        ...

    def save(self, device: torch.device) -> None:
        """Keep what is remembered for this device's model in the user's own table."""
        ...
