"""Compare the whole network with the dense one after a swap, and undo the swap if it is slower."""

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.inference.autotune import dense_name
from sparsefront.inference.benchmark import find_dtype, time_networks
from sparsefront.inference.fusion.block_pass import make_dense_graph, rewrite_dense
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.inference.precision import Precision
from sparsefront.inference.swap_report import SwapReport
from sparsefront.measure.end_to_end import NO_LAYER_IS_SPARSE, set_decided_versions, set_left_dense, was_left_dense
from sparsefront.measure.memory import count_bytes
from sparsefront.measure.search_time import SearchCache
from sparsefront.measure.settings import Measure
from sparsefront.measure.variants import DoesNotApply, copy_sharing_weights
from sparsefront.networks import architecture_text, snapshot_modules, tensors_digest
from sparsefront.tasks.plain_task import inputs_in_words, name_inputs_on

log = logging.getLogger(__name__)
SLOWEST = 0.98  # smallest speedup over the fastest dense version at which kernel=auto keeps kernels


def why_dense(sparse_ms: float, dense_ms: float) -> str | None:
    """Why to undo a swap, or None where the network is at most 2 % slower than dense.

    Args:
        sparse_ms, dense_ms: latencies of the whole networks, each in its fastest execution.
    """
    if dense_ms >= SLOWEST * sparse_ms:
        return None
    return f"the whole network takes {sparse_ms:.3f} ms with kernels, {dense_ms:.3f} ms dense"


def keep_dense(report: SwapReport, masked: nn.Module, why: str) -> SwapReport:
    """The report of a swap that was undone; times of layers and blocks are kept.

    Args:
        report: of the swap.
        masked: the network with masked dense weights that runs instead.
        why: the reason, reported for each layer.
    """
    modules = {name: masked.get_submodule(name) for name in report.layers}
    layers = {
        name: layer.as_dense(dense_name(modules[name]), count_bytes(modules[name]))
        for name, layer in report.layers.items()
    }
    return replace(
        report,
        layers=layers,
        dense_layers=report.dense_layers | {name: why for name in layers if name not in report.dense_layers},
        sparse_layer_share=0.0,
        sparse_flops_share=0.0,
        fusion=replace(report.fusion, faster_dense={block: why for block in report.fusion.blocks}),
        low_precision_layers=dict.fromkeys(report.low_precision_layers, why),
        other_kernels={},
        quantization_error=None,
    )


@dataclass(frozen=True)
class Decision:
    """Whether a swapped network keeps its kernels.

    Args:
        text: both latencies, or why there are none.
        why_dense: why it stays dense; None where it keeps its kernels.
        versions: `Execution.versions` of the network with kernels, in a whole forward.
        low: where it stays dense, the low precision runs, being faster than 16 bits.
    """

    text: str
    why_dense: str | None = None
    versions: Sequence[str] = ()
    low: bool = False

    def apply(self, net: nn.Module, inputs: dict[str, Tensor], settings: Measure) -> None:
        """Make `sf.benchmark` start with the execution that this network was decided in."""
        if self.versions:
            set_decided_versions(net, inputs, _settings(net, settings), self.versions)


def _settings(net: nn.Module, settings: Measure) -> Measure:
    return replace(settings, device="cuda", dtype=find_dtype(net), warmup=5, samples=20, repeats=3)


class SwapSnapshot:
    """A snapshot of a masked network before a swap, to restore it and, if it is `compared`, to time it next to the swapped one.

    Keeps its weights on the device while it is alive.
    """

    def __init__(self, net: nn.Module, *, compared: bool) -> None:
        """Raises any exception of a compared network that cannot be copied."""
        self._net = net
        self._restore = snapshot_modules(net)
        # swapping convolutions changes the memory format of weights; other weights do not change
        has_images = any(isinstance(module, nn.Conv2d) for module in net.modules())
        self._dense = net
        if compared:
            self._dense = copy.deepcopy(net) if has_images else copy_sharing_weights(net)

    @classmethod
    def of(cls, net: nn.Module, *, compared: bool) -> Self | None:
        """The snapshot, or None where the network has to be copied and cannot be."""
        try:
            return cls(net, compared=compared)
        except Exception as error:  # copying a network may fail in any way
            log.warning(
                "the whole network is not compared with the dense one, it cannot be copied: %s", failure_reason(error)
            )
            return None

    def compare(self, inputs: dict[str, Tensor], settings: Measure, precision: Precision) -> Decision:
        """Time both networks in their fastest execution modes, in turn; without a sparse layer, nothing has to be timed.

        Args:
            inputs, settings: as in `sf.benchmark`.
            precision: in which the dense network is timed too, if it is low.
        """
        left_dense = was_left_dense(self._net, self._dense)
        if left_dense == "none":
            return Decision(NO_LAYER_IS_SPARSE, NO_LAYER_IS_SPARSE)
        try:
            low = {}
            with suppress(DoesNotApply):
                if precision.is_low and settings.mode != "decode":
                    low[precision.name] = make_dense_graph(self._dense, inputs, precision.name, precision.calibration)
            measured = _settings(self._net, settings)
            timed = time_networks(self._dense.eval(), self._net, inputs, measured, fuse=make_dense_graph, low=low)
        except Exception as error:  # the kernels are correct, only their gain is unknown
            torch.cuda.synchronize()
            return Decision(f"the whole network was not compared with the dense one: {failure_reason(error)}")
        sparse_ms, rival = timed.sparse.median_ms, timed.dense.low or timed.dense
        if timed.dense.latency.median_ms <= rival.latency.median_ms:
            rival = timed.dense
        dense_ms, is_low = rival.latency.median_ms, rival is not timed.dense
        dense = f"{dense_ms:.3f} ms dense{f' in {precision.name}' if is_low else ''}"
        text = f"the whole network takes {sparse_ms:.3f} ms with kernels, {dense}"
        ways = f"{timed.execution.name} and {rival.execution.name}"
        versions = timed.execution.versions if settings.mode != "decode" else ()
        why = NO_LAYER_IS_SPARSE if left_dense else why_dense(sparse_ms, dense_ms) and text
        return Decision(f"{text}, as {ways}", why, versions, is_low)

    def undo(self, report: SwapReport, why: str, inputs: dict[str, Tensor], *, low: bool) -> SwapReport:
        """The report after the swap is undone: the masked network runs dense, with the same module and parameter objects.

        Args:
            why: it is undone.
            low: it runs in the low precision of the swap.
        """
        self._restore()
        self._net.eval()
        report = keep_dense(report, self._net, why)
        set_left_dense(self._net, architecture_text(self._net), report.precision.name if low else "none")
        if low:
            precisions = report.low_precision_layers | rewrite_dense(self._net, inputs, report.precision)
            report = replace(report, low_precision_layers=precisions)
        return report


@dataclass(frozen=True)
class StoredSwap:
    """The stored result of a swap.

    Args:
        decision: None where nothing was compared.
        left_out: kernels that the search had no time for; empty if the result is final.
    """

    plan: FusionPlan
    decision: Decision | None
    left_out: tuple[str, ...] = ()

    def keep(self, key: str, device: torch.device) -> None:
        """Store the result for other calls with this key, of later processes too."""
        decision = None if self.decision is None else asdict(self.decision)
        content = {"plan": self.plan.to_json(), "decision": decision, "left_out": list(self.left_out)}
        known_swaps.keep(key, content, device)

    @classmethod
    def of(cls, key: str, device: torch.device) -> Self | None:
        """The stored result, or None."""
        record = known_swaps.get(key, device)
        if record is None:
            return None
        decision = None if record["decision"] is None else Decision(**record["decision"])
        return cls(FusionPlan.from_json(record["plan"]), decision, tuple(record["left_out"]))


known_swaps = SearchCache("swaps", ("sparsefront.inference.swap",))


def swap_key(net: nn.Module, masks: Mapping[str, Tensor], example_inputs: object, options: object) -> str:
    """The key under which a swap is stored; raises as `name_inputs_on`.

    Args:
        options: the other arguments of the call.
    """
    inputs = inputs_in_words(name_inputs_on(net, example_inputs))
    return "\n".join((architecture_text(net), tensors_digest(masks), inputs, repr(options)))
