"""A network that stays dense after all: its kernels were faster layer by layer, and the whole was not."""

from dataclasses import replace

from torch import nn

from sparsefront.inference.autotune import dense_name
from sparsefront.inference.swap_report import LayerSwap, SwapReport
from sparsefront.measure.memory import stored_bytes

SLOWEST = 0.98  # speedup over the fastest dense version below which kernel=auto takes no kernels


def why_dense(sparse_ms: float, dense_ms: float) -> str | None:
    """Why a swapped network is given up, or None where it is at most 2 % slower than dense.

    Args:
        sparse_ms, dense_ms: of whole networks, each run in its fastest way.
    """
    if dense_ms >= SLOWEST * sparse_ms:
        return None
    return f"the whole network takes {sparse_ms:.3f} ms with kernels, {dense_ms:.3f} ms dense"


def kept_dense(report: SwapReport, masked: nn.Module, why: str) -> SwapReport:
    """What is said of the network without kernels; times of layers and blocks stay to be read.

    Args:
        report: of the swap that is given up.
        masked: the network that runs instead, with zeros in its dense weights.
        why: the reason that each layer gets.
    """
    layers = {name: _dense(layer, masked.get_submodule(name)) for name, layer in report.layers.items()}
    return replace(
        report,
        layers=layers,
        dense_layers=report.dense_layers | {name: why for name in layers if name not in report.dense_layers},
        sparse_layer_share=0.0,
        sparse_flops_share=0.0,
        fusion=replace(report.fusion, faster_dense={block: why for block in report.fusion.blocks}),
    )


def _dense(layer: LayerSwap, module: nn.Module) -> LayerSwap:
    kernel = dense_name(module)
    return replace(
        layer,
        kernel=kernel,
        family="dense",
        weight_bytes=stored_bytes(module),
        latency_us=layer.candidates.get(kernel),
        launch={},
        relative_error=None,
    )
