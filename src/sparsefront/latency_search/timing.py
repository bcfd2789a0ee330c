"""With what, and how, a network is timed while it is searched."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.measure.end_to_end import time_alone
from sparsefront.measure.execution_mode import is_compiled
from sparsefront.measure.settings import Measure
from sparsefront.measure.variants import Fuse


@dataclass(frozen=True, eq=False)
class Timing:
    """Args:
    inputs: keyword arguments of the network: the batch that is timed, on the device and in the dtype of the measurement.
    dtype: of weights and activations.
    settings: of the measurement.
    kernel: which kernels may run.
    """

    inputs: dict[str, Tensor]
    dtype: torch.dtype
    settings: Measure
    kernel: KernelChoice

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    @property
    def products(self) -> KernelChoice:
        """Which kernels may run a product that is timed: on a CPU the reference, as a swap there has it."""
        return replace(self.kernel, mode="sparse") if self.device.type == "cpu" else self.kernel

    def ready(self, net: nn.Module) -> nn.Module:
        """The network as it is measured."""
        return net.to(device=self.device, dtype=self.dtype).eval()

    def network_us(self, net: nn.Module, *, rewritten: bool, fuse: Fuse | None = None) -> float:
        """Microseconds of a forward in its fastest execution mode.

        Args:
            net: ready.
            rewritten: its blocks are, so that nothing is left to compile: a graph is the fastest.
            fuse: as of `measure.end_to_end.time_alone`.
        """
        settings = self.settings
        if rewritten:
            modes = [mode for mode in settings.execution_modes if not is_compiled(mode)] or settings.execution_modes
            settings = replace(settings, execution_modes=modes, variants=[])
        return time_alone(net, self.inputs, settings, fuse=fuse).latency.median_ms * 1e3
