"""Report of a swap: the kernel of each layer, and why others stayed dense."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparsefront.inference.autotune import Trial
from sparsefront.inference.choice import DENSE, is_dense, is_low
from sparsefront.inference.fusion.plan import FusionPlan, FusionReport, ProductReport
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.measure.problems import LayerInput
from sparsefront.measure.search_time import describe_taken
from sparsefront.progress import counted
from sparsefront.pruning.layers import KEEPS_ALL, READ, UNREACHED


@dataclass(frozen=True)
class LayerSwap:
    """One pruned layer; kernel, family and the like are those that run after the swap.

    Args:
        kernel: name; dense_linear or dense_conv2d where nothing was swapped.
        family: storage format of the weight.
        density: fraction of weights kept by the mask.
        weight_bytes: of values and indices.
        latency_us: None on a CPU, where nothing is timed.
        candidates: kernel -> microseconds, dense included; empty on a CPU.
        unsupported: kernel -> why it could not be used; a wrong result is one reason.
        notes: kernel -> remarks on its time.
        launch: launch parameters by name: shipped, a user's own, timed now, or predicted.
        relative_error: against the fp64 product, in low precision that of the quantized operands; None where the layer stayed
            dense in 16 bits.
        quantization_error: of a low-precision kernel, against the fp64 product of the unquantized operands.
    """

    kernel: str
    family: str
    density: float
    weight_bytes: int
    latency_us: float | None = None
    candidates: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    relative_error: float | None = None
    quantization_error: float | None = None

    @property
    def is_sparse(self) -> bool:
        return self.family != "dense"

    def as_dense(self, kernel: str, weight_bytes: int) -> "LayerSwap":
        """The layer when it stays dense, as `kernel`, with a weight of `weight_bytes`."""
        return replace(
            self,
            kernel=kernel,
            family="dense",
            weight_bytes=weight_bytes,
            latency_us=self.candidates.get(kernel),
            launch={},
            relative_error=None,
            quantization_error=None,
        )

    def to_json(self) -> dict[str, Any]:
        """Fields of the result: empty ones are absent, and `kernel` is called `chosen`."""
        content = {"chosen" if key == "kernel" else key: value for key, value in asdict(self).items()}
        return {key: value for key, value in content.items() if value not in (None, {})}


@dataclass(frozen=True)
class SwapReport:
    """The whole network.

    Args:
        layers: every pruned layer, including those that stayed dense.
        dense_layers: every prunable layer that runs dense -> why.
        sparse_layer_share: fraction of the prunable layers that run a sparse kernel; None where whole blocks were removed and
            the remaining network is dense, so that no share tells whether it is faster.
        sparse_flops_share: fraction that runs in sparse kernels, of the dense flops of all products with weights in the observed
            forward: recurrent layers, experts, attention's own parameters and layers that were not chosen count, embeddings do
            not. From `swap_layers`, of the prunable layers only. None where blocks were removed or layers became narrower.
        fusion: report of the rewritten blocks.
        problems: prunable layer -> its problem; a layer that is not called is absent.
        others: all else that has weights and stays dense, such as embeddings and layers without a mask -> why.
        precision: of the low-precision kernels that were allowed next to 16-bit ones.
        low_precision_layers: if low precision was allowed, each Linear and Conv2d -> its precision, or why it stays in 16 bits.
        other_kernels: unpruned Linear outside of rewritten blocks that runs in low precision -> kernel.
        quantization_error: relative error of the network's outputs against those without quantization; None in 16 bits.
        whole_network: latencies of the network with and without kernels, for `sf.swap` with kernel=auto on a GPU; else empty.
        seconds: of the search and its parts, for `sf.swap` on a GPU (`SearchTime.taken`); else empty.
    """

    layers: dict[str, LayerSwap]
    dense_layers: dict[str, str]
    sparse_layer_share: float | None
    sparse_flops_share: float | None
    fusion: FusionReport = field(default_factory=FusionReport)
    problems: Mapping[str, LayerInput] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    precision: Precision = IN_16_BITS
    low_precision_layers: dict[str, str] = field(default_factory=dict)
    other_kernels: dict[str, str] = field(default_factory=dict)
    quantization_error: float | None = None
    whole_network: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, int]:
        """Kernel -> number of pruned layers that run it, most used first."""
        return dict(Counter(layer.kernel for layer in self.layers.values()).most_common())

    @property
    def plan(self) -> FusionPlan:
        """All choices, with which `sf.swap` repeats this swap without timing."""
        blocks = self.fusion.plan
        inside = {
            *self.fusion.product_of,
            *(layer for name in blocks.faster_dense for layer in self.fusion.layers_of(name)),
        }
        layers = {name: layer.kernel for name, layer in self.layers.items() if name not in inside}
        return replace(
            blocks,
            layers=layers | self.other_kernels,
            precision=self.precision.name,
            calibration=dict(self.precision.calibration),
        )

    def counting(
        self, flops: Mapping[str, int], weights: Mapping[str, str], read: Container[str], others: Mapping[str, str]
    ) -> "SwapReport":
        """The report extended to the whole network: its share of flops over all weights, and reasons of layers not called.

        Args:
            flops: parameter -> dense flops of all products with it in one forward.
            weights: pruned layer -> its weight parameter, the same for layers that share it.
            read: layers whose weight the forward reads in any operation.
            others: all else that has weights -> why it stays dense.
        """
        reasons = {name: READ if why == UNREACHED and name in read else why for name, why in self.dense_layers.items()}
        share = self.sparse_flops_share
        if share is not None:
            sparse = {weights[name] for name, layer in self.layers.items() if layer.is_sparse}
            total = sum(flops.values())
            share = sum(flops.get(name, 0) for name in sparse) / total if total else 0.0
        return replace(self, dense_layers=reasons, sparse_flops_share=share, others=dict(others))

    def rename(self, names: Mapping[str | None, str]) -> "SwapReport":
        """The report with layers renamed by `names`; others keep their names."""

        def rename_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
            return {names.get(name, name): value for name, value in mapping.items()}

        dense_layers, problems = rename_keys(self.dense_layers), rename_keys(self.problems)
        low = rename_keys(self.low_precision_layers)
        return replace(
            self,
            layers=rename_keys(self.layers),
            dense_layers=dense_layers,
            problems=problems,
            low_precision_layers=low,
        )

    def __str__(self) -> str:
        """See `swap_text`."""
        return swap_text(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": {name: layer.to_json() for name, layer in self.layers.items()},
            "dense_layers": self.dense_layers,
            "sparse_layer_share": self.sparse_layer_share,
            "sparse_flops_share": self.sparse_flops_share,
            **self.fusion.to_json(),
            **(self._low_precision() if self.precision.is_low else {}),
        }

    def _low_precision(self) -> dict[str, Any]:
        return {
            "precision": self.precision.name,
            "low_precision_layers": self.low_precision_layers,
            "quantization_error": self.quantization_error,
        }


def swap_text(report: SwapReport) -> str:
    """The share that runs sparse, then a line per layer: kernel, density, time if measured, why it is dense; then all others
    with weights, and the number of blocks per rewriting or reason against one.
    """
    sparse = sum(layer.is_sparse for layer in report.layers.values())
    total = len({*report.layers, *report.dense_layers})
    head = f"a smaller dense network: {total} layers without a sparse kernel"
    if report.sparse_flops_share is not None:
        head = f"{sparse} of {total} layers run a sparse kernel ({report.sparse_flops_share:.0%} of all dense flops)"
    lines = {name: _line(layer, report.dense_layers.get(name)) for name, layer in report.layers.items()}
    lines |= {name: f"dense: {why}" for name, why in report.dense_layers.items() if name not in report.layers}
    lines |= {name: f"dense: {why}" for name, why in report.others.items()}
    width = max(map(len, lines), default=0)
    table = [f"  {name:<{width}}  {line}" for name, line in lines.items()]
    blocks = (f"  {count} x {what}" for what, count in report.fusion.summary().items())
    whole = [f"  the swap took {describe_taken(report.seconds)}"] if report.seconds else []
    whole += [f"  {report.whole_network}"] if report.whole_network else []
    return "\n".join((head, *table, *blocks, *_low_precision_lines(report), *whole))


def _low_precision_lines(report: SwapReport) -> list[str]:
    """The number of low-precision layers, and a line per reason against it."""
    if not report.precision.is_low:
        return []
    name, counts = report.precision.name, Counter(report.low_precision_layers.values())
    head = f"  {counts.pop(name, 0)} of {len(report.low_precision_layers)} layers run in {name}"
    return [head, *(f"  {counted(count, 'layer')} in 16 bits: {why}" for why, count in counts.items())]


def _line(layer: LayerSwap, why_dense: str | None) -> str:
    parts = [layer.kernel, f"keeps {layer.density:.1%}"]
    if layer.latency_us is not None:
        parts.append(f"{layer.latency_us:.1f} us")
    if why_dense is not None:
        parts.append(f"dense: {why_dense}")
    return ", ".join(parts)


def report_layer(fusion: FusionReport, name: str, density: float) -> tuple[LayerSwap, str | None] | None:
    """The report of a layer of a rewritten block, and why it is dense or None; None for a layer of no such block.

    Times and bytes are those of the layer's product, divided by the number of Linears joined in it.
    """
    product = fusion.product_of.get(name)
    if product is not None:
        reason = None if product.family != "dense" else _why_dense(product)
        return _swap(product, density, product.kernel), reason
    for block, reason in fusion.faster_dense.items():
        product = fusion.layers_of(block).get(name)
        if product is not None:
            return _swap(product, density, DENSE), f"its block {block} stays as it is: {reason}"
    return None


def _swap(product: ProductReport, density: float, kernel: str) -> LayerSwap:
    share = 1 / len(product.layers)
    times = {name: time * share for name, time in product.candidates.items()}
    plain = kernel == DENSE
    return LayerSwap(
        kernel=kernel,
        family="dense" if plain else product.family,
        density=density,
        weight_bytes=round(product.weight_bytes * share),
        latency_us=times.get(kernel),
        candidates=times,
        unsupported=product.unsupported,
        launch={} if plain else product.launch,
        notes={kernel: "; ".join(filter(None, (f"in its block: {product.describe()}", product.timing())))},
        relative_error=None if plain else product.relative_error,
        quantization_error=None if plain else product.quantization_error,
    )


def _why_dense(product: ProductReport) -> str:
    others = {name: time for name, time in product.candidates.items() if not is_dense(name)}
    if not others and all(map(is_dense, product.unsupported)):
        return KEEPS_ALL
    if not others:
        return "no kernel can run it: " + "; ".join(f"{kernel}: {why}" for kernel, why in product.unsupported.items())
    best = min(others, key=others.__getitem__)
    return f"{product.kernel} is faster: {product.latency_us:.1f} us against {others[best]:.1f} us of {best}"


def describe_precision(product: ProductReport, precision: Precision) -> str:
    """The precision of a product of a rewritten block, or why it stays in 16 bits."""
    return precision.name if is_low(product.kernel) else why_16_bits(product, precision)


def why_16_bits(chosen: ProductReport | LayerSwap | Trial, precision: Precision) -> str:
    """Why an autotuned layer runs no low-precision kernel."""
    if isinstance(chosen, Trial):
        kernel, family, times = chosen.dense, "dense", chosen.latencies_us
    else:
        kernel, family, times = chosen.kernel, chosen.family, chosen.candidates
    low = {name for name in times if is_low(name)}
    if low:
        best = min(low, key=times.__getitem__)
        return f"{kernel} was chosen, {best} takes {times[best]:.1f} us"
    reasons = {name: why for name, why in chosen.unsupported.items() if is_low(name)}
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    explanation = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return explanation or f"no kernel runs weights stored as {family} in {precision.of_kernels}"
