"""The layers of one run as a table."""

from typing import Any

from sparsefront.inference.dense_kernels import DENSE_KERNELS
from sparsefront.pruning.collapse import collapsed_layers
from sparsefront.report.column_kinds import fraction, plain, times
from sparsefront.report.result import Result


def layer_lines(result: Result) -> list[dict[str, str]]:
    """Per layer: sparsity, kernel, time, speedup over the dense kernel, and why it stayed dense or other kernels are unsupported.

    The sparsity of a layer that collapsed says so: the page marks it.
    """
    collapsed = collapsed_layers(result.sparsity.sparsity_per_layer, result.sparsity.sparsity_target)
    names = [*result.sparsity.sparsity_per_layer, *result.sparsity.dense_layers, *result.kernels.kernel_per_layer]
    return [_line(result, name, name in collapsed) for name in dict.fromkeys(names)]


def _line(result: Result, name: str, collapsed: bool) -> dict[str, str]:
    kernel = result.kernels.kernel_per_layer.get(name, {})
    unsupported = "; ".join(f"{other}: {reason}" for other, reason in (kernel.get("unsupported") or {}).items())
    latency = kernel.get("latency_us")
    return {
        "layer": name,
        "sparsity": fraction(result.sparsity.sparsity_per_layer.get(name)) + (" (collapsed)" if collapsed else ""),
        "kernel": plain(kernel.get("chosen")),
        "µs": "–" if latency is None else f"{latency:.1f}",
        "speedup": times(_speedup(kernel)),
        "of roofline": fraction(kernel.get("roofline_fraction")),
        "stayed dense, or unsupported because": result.sparsity.dense_layers.get(
            name, kernel.get("why_dense", unsupported)
        ),
    }


def _speedup(kernel: dict[str, Any]) -> float | None:
    """Over the dense kernel that was timed in turn; None where it was not."""
    candidates, latency = kernel.get("candidates") or {}, kernel.get("latency_us")
    dense = next((candidates[name] for name in DENSE_KERNELS if candidates.get(name)), None)
    return dense / latency if dense and latency else None
