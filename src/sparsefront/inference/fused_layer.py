"""A pruned layer inside a rewritten block, as the report of a swap has it."""

from sparsefront.inference.fusion.candidates import DENSE
from sparsefront.inference.fusion.report import FusionReport, ProductReport
from sparsefront.inference.swap_report import LayerSwap


def fused_layer(fusion: FusionReport, name: str, density: float) -> tuple[LayerSwap, str | None] | None:
    """What runs the layer, and why that is dense or None; None where the layer is in no block that was taken apart.

    Times and bytes are those of the layer's product, divided by the number of Linears that are one product.
    """
    product = fusion.product_of.get(name)
    if product is not None:
        reason = None if product.family != "dense" else _why_dense(product)
        return _swap(product, density, product.kernel), reason
    for block, reason in fusion.faster_dense.items():
        if (product := fusion.layers_of(block).get(name)) is not None:
            return _swap(product, density, DENSE), f"its block {block} stays as it is: {reason}"
    return None


def _swap(product: ProductReport, density: float, kernel: str) -> LayerSwap:
    share = 1 / len(product.layers)
    times = {name: time * share for name, time in product.candidates.items()}
    dense = kernel == DENSE
    return LayerSwap(
        kernel=kernel,
        family="dense" if dense else product.family,
        density=density,
        weight_bytes=round(product.weight_bytes * share),
        latency_us=times.get(kernel),
        candidates=times,
        unsupported=product.unsupported,
        launch={} if dense else product.launch,
        notes={kernel: f"in its block: {product.describe()}"},
        relative_error=None if dense else product.relative_error,
    )


def _why_dense(product: ProductReport) -> str:
    others = {name: time for name, time in product.candidates.items() if name != DENSE}
    if not others:
        return "no kernel can run it: " + "; ".join(f"{kernel}: {why}" for kernel, why in product.unsupported.items())
    best = min(others, key=others.__getitem__)
    return f"{DENSE} is faster: {product.latency_us:.1f} us against {others[best]:.1f} us of {best}"
