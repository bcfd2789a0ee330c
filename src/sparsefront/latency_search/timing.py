"""With what, and how, a network is timed while it is searched."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparsefront.allocation.measuring import Measured
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.fuse import fused_dense_graph
from sparsefront.measure.end_to_end import find_dense, rebuild_dense, time_alone, time_beside
from sparsefront.measure.execution_mode import NothingRuns
from sparsefront.measure.search import Execution
from sparsefront.measure.settings import Measure
from sparsefront.measure.variants import DoesNotApply

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Timing:
    """Args:
    inputs: keyword arguments of the network: the batch that is timed, on the device and in the dtype of the measurement.
    dtype: of weights and activations; None: each keeps its own, as in networks whose norms are float32 and whose products are
        bfloat16.
    settings: of the measurement.
    kernel: which kernels may run.
    """

    inputs: dict[str, Tensor]
    dtype: torch.dtype | None
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

    def dense(self, net: nn.Module) -> tuple[float, tuple[str, ...]]:
        """Microseconds of a forward of the dense network in its fastest version, found as a measurement finds it, and the
        versions that a measurement times.

        Args:
            net: ready.
        """
        found = time_alone(net, self.inputs, self.settings, fuse=fused_dense_graph)
        return found.latency.median_ms * 1e3, found.versions

    def network_us(self, net: nn.Module) -> float:
        """Microseconds of a forward in its fastest execution mode.

        Args:
            net: ready.
        """
        return time_alone(net, self.inputs, self._quick).latency.median_ms * 1e3

    def in_turn(self, net: nn.Module, dense: Execution) -> Measured:
        """A network and the dense one, as in a measurement.

        Args:
            net: ready.
        """
        pruned, beside = time_beside(net, dense, self.inputs, self._quick)
        return Measured(pruned.median_ms * 1e3, beside.median_ms * 1e3)

    def dense_execution(self, net: nn.Module, versions: Sequence[str] = ()) -> Execution:
        """The dense network in its fastest version, to be timed beside sparse ones.

        Args:
            net: ready.
            versions: that were found for it; where there are none, or one fails here, they are searched.
        """
        if versions:
            try:
                return rebuild_dense(net, self.inputs, self.settings, versions, fused_dense_graph)
            except (DoesNotApply, NothingRuns) as reason:
                log.info("search: dense versions are searched anew: %s", reason)
        return find_dense(net, self.inputs, self._quick, fused_dense_graph)

    @property
    def _quick(self) -> Measure:
        """The settings without max_autotune, which takes as long as all else; with it where nothing else would be left."""
        modes = [mode for mode in self.settings.execution_modes if not mode.startswith("max_autotune")]
        return replace(self.settings, execution_modes=modes or self.settings.execution_modes)
