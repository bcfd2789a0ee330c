"""Latency of a swapped network beside its dense twin: same inputs, same process, in turn, each at its best wrapping."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsefront.measure.latency import LatencySummary, summarise, time_interleaved
from sparsefront.measure.settings import Measure
from sparsefront.measure.speedup import Speedup, speedup_of
from sparsefront.measure.wrapping import Wrapped, best_wrapping


@dataclass(frozen=True)
class Alone:
    """One network timed on its own: `latency` over the samples of all repeats, `samples_ms` one list per repeat."""

    latency: LatencySummary
    wrapping: Wrapped
    samples_ms: list[list[float]]
    batch_size: int

    @property
    def throughput_samples_per_s(self) -> float:
        return self.batch_size / self.latency.median_ms * 1e3


@dataclass(frozen=True)
class EndToEnd:
    """Two networks timed side by side.

    Args:
        dense, sparse: over the samples of all repeats.
        speedup: dense / sparse with its interval.
        wrapping_dense, wrapping_sparse: which way each ran, what the others took and why some were refused.
        samples_ms: "dense" | "sparse" -> one list of samples per repeat.
        batch_size: rows of the inputs.
    """

    dense: LatencySummary
    sparse: LatencySummary
    speedup: Speedup
    wrapping_dense: Wrapped
    wrapping_sparse: Wrapped
    samples_ms: dict[str, list[list[float]]]
    batch_size: int

    @property
    def throughput_dense_samples_per_s(self) -> float:
        return self.batch_size / self.dense.median_ms * 1e3

    @property
    def throughput_sparse_samples_per_s(self) -> float:
        return self.batch_size / self.sparse.median_ms * 1e3

    @property
    def wrapping_refusals(self) -> dict[str, str]:
        """Why wrappings were not timed, under "dense/<wrapping>" and "sparse/<wrapping>"."""
        sides = {"dense": self.wrapping_dense, "sparse": self.wrapping_sparse}
        return {f"{side}/{name}": why for side, wrapped in sides.items() for name, why in wrapped.refused.items()}


def time_alone(net: nn.Module, inputs: dict[str, Tensor], settings: Measure) -> Alone:
    """Find a network's best wrapping, then time it: for a dense one without a sparse twin. Raises as `time_pair`."""
    taken, wrapped = _time({"alone": net}, inputs, settings)
    return Alone(summarise(sum(taken["alone"], [])), wrapped["alone"], taken["alone"], len(next(iter(inputs.values()))))


def time_pair(dense: nn.Module, sparse: nn.Module, inputs: dict[str, Tensor], settings: Measure) -> EndToEnd:
    """Find each network's best wrapping, then time both in turn.

    Args:
        dense, sparse: in eval mode, on the inputs' device, in `settings.torch_dtype`.
        inputs: keyword arguments of both.
    Raises:
        RuntimeError: no wrapping can run one of them; or a CUDA timing without a GPU.
    """
    samples_ms, wrapped = _time({"dense": dense, "sparse": sparse}, inputs, settings)
    return EndToEnd(
        dense=summarise(sum(samples_ms["dense"], [])),
        sparse=summarise(sum(samples_ms["sparse"], [])),
        speedup=speedup_of(samples_ms["dense"], samples_ms["sparse"]),
        wrapping_dense=wrapped["dense"],
        wrapping_sparse=wrapped["sparse"],
        samples_ms=samples_ms,
        batch_size=len(next(iter(inputs.values()))),
    )


def _time(
    nets: dict[str, nn.Module], inputs: dict[str, Tensor], settings: Measure
) -> tuple[dict[str, list[list[float]]], dict[str, Wrapped]]:
    """name -> samples in milliseconds, one list per repeat; name -> how the network was run."""
    device = next(iter(inputs.values())).device
    if any(name.startswith("compile") for name in settings.wrappings):
        torch.compiler.reset()  # earlier points of a sweep would use up the recompile limit, and eager code run unsaid
    wrapped = {
        name: best_wrapping(net, inputs, wrappings=settings.wrappings, device=device, dtype=settings.torch_dtype)
        for name, net in nets.items()
    }
    samples_ms: dict[str, list[list[float]]] = {name: [] for name in nets}
    for _ in range(settings.repeats):
        taken = time_interleaved(
            {name: way.call for name, way in wrapped.items()},
            device=device,
            warmup=settings.warmup,
            samples=settings.samples,
        )
        for name, samples in taken.items():
            samples_ms[name].append(samples)
    return samples_ms, wrapped
