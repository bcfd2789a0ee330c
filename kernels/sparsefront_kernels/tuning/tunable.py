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

    @property
    def kernel(self) -> str: ...

    @property
    def version(self) -> int: ...

    def candidates(self, packed: Any, problem: Problem) -> Sequence[Any]:
        """The launches worth timing (frozen dataclasses), best predicted first, on the current CUDA device.

        Args:
            packed: what the entry's `pack` gave.
        """
        ...

    def remember(self, packed: Any, problem: Problem, launch: Any, latency_us: float) -> None:
        """Use this launch, of this measured latency, for this problem from now on in this process; `save` keeps it."""
        ...

    def try_out(self, packed: Any, problem: Problem, launch: Any) -> None:
        """Use this launch for this problem in this process, until another one is tried or remembered, or `end_trial`."""
        ...

    def end_trial(self, packed: Any, problem: Problem) -> None:
        """Use again for this problem what would be used if none had been tried."""
        ...

    def on_trial(self, packed: Any, problem: Problem) -> bool:
        """Whether a launch is tried for this problem."""
        ...

    def launch(self, packed: Any, problem: Problem) -> Any:
        """The launch in use for this problem: on trial or measured for it or for the nearest like it, or the untuned one."""
        ...

    def measured(self, packed: Any, problem: Problem) -> bool:
        """Whether this very problem was measured on the GPU at hand, now or in an earlier process."""
        ...

    def save(self, device: torch.device) -> None:
        """Keep what this process remembered for this device's model in the user's own table.

        Raises:
            OSError: the table cannot be written.
        """
        ...
