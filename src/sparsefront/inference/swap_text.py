"""A swap's report as people read it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsefront.inference.swap_report import LayerSwap, SwapReport


def swap_text(report: "SwapReport") -> str:
    """How much runs sparse, then a line per layer: kernel, density, time where it was measured, why it is dense.

    Below them a line per rewriting of blocks, or reason against one, with the number of blocks.
    """
    sparse = sum(layer.is_sparse for layer in report.layers.values())
    total = len({*report.layers, *report.dense_layers})
    head = f"{sparse} of {total} layers run a sparse kernel ({report.sparse_flops_share:.0%} of their dense flops)"
    lines = {name: _line(layer, report.dense_layers.get(name)) for name, layer in report.layers.items()}
    lines |= {name: f"dense: {why}" for name, why in report.dense_layers.items() if name not in report.layers}
    width = max(map(len, lines), default=0)
    table = [f"  {name:<{width}}  {line}" for name, line in lines.items()]
    return "\n".join((head, *table, *(f"  {count} x {what}" for what, count in report.fusion.summary().items())))


def _line(layer: "LayerSwap", why_dense: str | None) -> str:
    parts = [layer.kernel, f"keeps {layer.density:.1%}"]
    if layer.latency_us is not None:
        parts.append(f"{layer.latency_us:.1f} us")
    if why_dense is not None:
        parts.append(f"dense: {why_dense}")
    return ", ".join(parts)
