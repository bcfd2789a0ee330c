"""Times of single layers outside of blocks that are rewritten, and of the products inside of them, under a candidate."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from sparsefront.inference.autotune import autotune_layer, dense_name
from sparsefront.inference.candidates import find_candidates
from sparsefront.inference.encoder_fast_path import nested_tensor_reason
from sparsefront.inference.fusion.call import Unfusable
from sparsefront.inference.fusion.product_times import Layers, ProductTimes
from sparsefront.inference.unsupported_layer import layer_unsupported_reason
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.masked_layers import masked
from sparsefront.latency_search.timing import Timing
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.cpu_timer import time_where_it_is
from sparsefront.measure.problems import LayerInput


@dataclass(frozen=True)
class Timed:
    """Microseconds of the fastest kernel, and which one that is."""

    latency_us: float
    kernel: str


def product_times(
    products: ProductTimes,
    net: nn.Module,
    block: str,
    masks: CandidateMasks,
    choice: tuple[int | None, float],
    layers: list[str],
    layout: str,
) -> dict[Layers, Timed]:
    """Per product of a block (as where all is dense) its time under a candidate; empty where the block cannot be rewritten.

    Args:
        net: the network that `products` was made of.
        choice: number of the candidate and sparsity; None = dense.
        layers: of the block, that get this candidate; the others are dense.
        layout: of the residual stream.
    """
    pattern, sparsity = choice
    made = {} if pattern is None else {layer: masks.mask(layer, pattern, sparsity) for layer in layers}
    with masked(net, made):
        try:
            formats = {
                layer: masks.stored(layer, as_matrix(net.get_submodule(layer).weight), mask, pattern, sparsity)
                for layer, mask in made.items()
                if pattern is not None
            }
            on_cpu = {layer: mask.cpu() for layer, mask in made.items()}
            reports = products.of(block, formats, on_cpu, layout)
        except Unfusable:
            return {}
    times: dict[Layers, Timed] = {}
    for group in products.products[block]:
        parts = [report for report in reports if set(report.layers) <= set(group)]
        if parts and all(report.latency_us is not None for report in parts):
            total = sum(report.latency_us or 0.0 for report in parts)
            times[group] = Timed(total, "+".join(dict.fromkeys(report.kernel for report in parts)))
    return times


def layer_time(
    net: nn.Module,
    layer: str,
    received: LayerInput,
    masks: CandidateMasks,
    choice: tuple[int | None, float],
    timing: Timing,
) -> Timed | None:
    """The time of a layer by itself, row-major on both sides, under a candidate; None where no kernel runs it."""
    module, (pattern, sparsity) = net.get_submodule(layer), choice
    device = timing.device
    x = torch.randn(received.input_shape, device=device, dtype=received.problem.dtype)
    if pattern is None:
        return Timed(time_where_it_is(module, x).latency_us, dense_name(module))
    if layer_unsupported_reason(module) or nested_tensor_reason(net, layer):
        return None
    mask = masks.mask(layer, pattern, sparsity)
    with masked(net, {layer: mask}):
        stored = masks.stored(layer, as_matrix(module.weight), mask, pattern, sparsity)
        stored = stored.to(device=device, dtype=module.weight.dtype)
        wants = partial(timing.products.wants, canonical=stored.family, device=device)
        candidates = find_candidates(stored, mask.to(device), received.problem, wants)
        tuned = autotune_layer(module, candidates, received)
        if not tuned.latencies_us:  # on a CPU
            timed = {kernel: time_where_it_is(runs, x).latency_us for kernel, runs in tuned.modules.items()}
            tuned.latencies_us.update(timed)
        chosen = tuned.fastest(dense_allowed=timing.products.dense_allowed)
        if chosen is None and not tuned.modules:
            return None
        name = chosen or tuned.dense
        return Timed(tuned.latencies_us[name], name)
