"""The report of a fusion pass per block and product, and its choices as a small JSON plan stored with an export."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.progress import counted
from sparsefront.settings_class import settings_class

LAYOUTS = ("feature_major", "row_major")
FORMAT_VERSION = 1


@dataclass(frozen=True)
class BlockPlan:
    """The choices for one block.

    Args:
        layout: of its residual stream, one of LAYOUTS.
        kernels: names of a product's Linears, joined by "+" -> its kernel.
        hidden_bytes: as in `FusedBlock`.
        attention: whether our kernel computes attention, in this layout.
        fuses_cached: as in `BlockReport`.
    """

    layout: str
    kernels: dict[str, str]
    hidden_bytes: int | None = None
    attention: bool = False
    fuses_cached: bool = True


@dataclass(frozen=True)
class FusionPlan:
    """The choices for a network.

    Args:
        blocks: block -> how it is rewritten.
        faster_dense: blocks that stay unchanged.
        layers: pruned or low-precision layer outside of these -> its kernel.
        precision: of low-precision kernels.
        calibration: for fp8_static, Linear -> largest absolute value of its inputs.
    """

    blocks: dict[str, BlockPlan] = field(default_factory=dict)
    faster_dense: tuple[str, ...] = ()
    layers: dict[str, str] = field(default_factory=dict)
    precision: str = "none"
    calibration: dict[str, float] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        file.write_text(
            json.dumps({"format_version": FORMAT_VERSION, **self.to_json()}, indent=2) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, file: Path) -> "FusionPlan":
        """Read what `save` wrote.

        Raises:
            InvalidSetting: the file is missing or of another format version (key `plan`).
        """
        if not file.is_file():
            raise InvalidSetting("plan", file, "no such file")
        content = json.loads(file.read_text(encoding="utf-8"))
        version = content.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise InvalidSetting("plan", file, f"has format version {version}, this program reads {FORMAT_VERSION}")
        return cls.from_json(content)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "FusionPlan":
        blocks = {name: BlockPlan(**block) for name, block in content["blocks"].items()}
        low = content.get("precision", "none"), content.get("calibration", {})
        return cls(blocks, tuple(content["faster_dense"]), content["layers"], *low)


@settings_class()
class FusionParts:
    """Rewrites that the fusion pass may use.

    Args:
        joined: join Linears that read the same activation to one product.
        activation: fuse activations into the product before them. Without it `compact` keeps hidden features, too.
        residual: fuse residual additions into the product before them, or into the norm after them.
        residual_in_norm: let our norm kernel add the residual if the product's kernel cannot fuse it and a norm reads the
            sum; else the addition is a separate pass.
        compact: remove pruned hidden features between two products, and pruned values after attention.
        layouts: of the residual stream to choose from by time; the first if nothing is timed.
    Raises:
        InvalidSetting: no layout, or an unknown one.
    """

    joined: bool = True
    activation: bool = True
    residual: bool = True
    residual_in_norm: bool = True
    compact: bool = True
    layouts: Annotated[tuple[Literal[LAYOUTS], ...], Field(min_length=1)] = LAYOUTS  # type: ignore[valid-type]


ALL_PARTS = FusionParts()


MOST_KERNELS = 2  # named in a headline, which has to fit a line of a terminal


@dataclass(frozen=True)
class ProductReport:
    """One product.

    Args:
        layers: its Linears, by their names in the network.
        kernel, family: the chosen kernel, and the storage of its weight.
        m, k, n: problem size, without removed hidden features.
        density: fraction of the weights [N, K] of its original Linears that masks keep.
        layout: of X and Y.
        activation, residual: fused into the product.
        vanished_inputs: number of hidden features removed, and of constant inputs that it no longer reads.
        vanished_outputs: number of hidden features that it no longer computes.
        latency_us: of the chosen kernel; None where nothing was timed.
        candidates: kernel -> microseconds, dense included.
        unsupported: kernel -> why it cannot be used.
        launch: launch parameters of the chosen kernel, by name.
        relative_error: against the fp64 product, in low precision that of the quantized operands; None where it was not
            checked.
        quantization_error: against the fp64 product of the unquantized operands; None in 16 bits.
        timed_as: name of a product of equal shape, epilogue and tile lengths whose times these are.
        timed_like: name of a nearly equal product whose slow kernels were not timed for this one.
    """

    layers: tuple[str, ...]
    kernel: str
    family: str
    m: int
    k: int
    n: int
    density: float
    layout: str
    activation: str
    residual: bool
    weight_bytes: int
    vanished_inputs: int = 0
    vanished_outputs: int = 0
    latency_us: float | None = None
    candidates: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    relative_error: float | None = None
    quantization_error: float | None = None
    timed_as: str | None = None
    timed_like: str | None = None

    def layers_in(self, block: str) -> tuple[str, ...]:
        """Names of the Linears within their block."""
        return tuple(name.removeprefix(f"{block}.") for name in self.layers)

    def timing(self) -> str:
        """A note on times taken from another product; empty where all are its own."""
        notes = [f"times are those of {self.timed_as}"] if self.timed_as else []
        notes += [f"timed with the kernels that were fast in {self.timed_like} alone"] if self.timed_like else []
        return "; ".join(notes)

    def describe(self) -> str:
        """A line such as `query+key+value 12288x1024->3072 feature_to_row gathered_sm90`."""
        names = "+".join(name.rsplit(".", 1)[-1] for name in self.layers)
        parts = [names, f"{self.m}x{self.k}->{self.n}", self.layout, self.kernel]
        parts += [self.activation] * (self.activation != "none") + ["residual"] * self.residual
        return " ".join(parts)


@dataclass(frozen=True)
class NormReport:
    """Feature-major norms of one problem.

    Args:
        kernel: "triton" or "cuda".
        launch: launch parameters of the kernel, by name.
        latency_us: of the chosen launch; None where this pass did not time it.
        candidates: launch -> microseconds, where this pass timed them.
        unsupported: launch -> why it cannot be used; a wrong result is one reason.
    """

    kernel: str
    launch: dict[str, Any] = field(default_factory=dict)
    latency_us: float | None = None
    candidates: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Fields of the result: empty ones are absent, and `kernel` is called `chosen`, as for a layer."""
        content = {"chosen" if key == "kernel" else key: value for key, value in asdict(self).items()}
        return {key: value for key, value in content.items() if value not in (None, {})}


@dataclass(frozen=True)
class BlockReport:
    """One rewritten block.

    Args:
        layout: of the residual stream.
        norms: number of norms that are not PyTorch's.
        residual_norms: number of these that add a residual to a product's output.
        relative_error: of its output against the block with masked dense weights, in low precision against quantized operands
            multiplied in float32; None where it was not checked.
        norm_launches: launches of these norms, "cuda_rows" for row-major ones; empty where plain PyTorch runs them.
        quantization_error: of a low-precision block's output against the block with masked dense weights.
        hidden_bytes: as in `FusedBlock`.
        attention: whether our kernel computes attention, in this layout.
        fuses_cached: whether calls of one token with a static cache run a graph, where the block has one for them; else its
            original code, which was faster.
    """

    layout: str
    products: list[ProductReport]
    norms: int
    relative_error: float | None = None
    residual_norms: int = 0
    norm_launches: tuple[str, ...] = ()
    quantization_error: float | None = None
    hidden_bytes: int | None = None
    attention: bool = False
    fuses_cached: bool = True

    @property
    def plan(self) -> BlockPlan:
        """The choices of this block; keys are names in the network."""
        kernels = {"+".join(product.layers): product.kernel for product in self.products}
        return BlockPlan(self.layout, kernels, self.hidden_bytes, self.attention, self.fuses_cached)

    def describe(self) -> str:
        norms = f"{self.norms} norms" + f" ({self.residual_norms} add the residual)" * (self.residual_norms > 0)
        norms += f" by {', '.join(dict.fromkeys(self.norm_launches))}" * bool(self.norm_launches)
        chunks = [] if self.hidden_bytes is None else [f"hidden features by {self.hidden_bytes} bytes"]
        other = ["attention by our kernel"] * self.attention + chunks
        return f"{self.layout}: " + "; ".join([*(product.describe() for product in self.products), norms, *other])


@dataclass(frozen=True)
class FusionReport:
    """The fusion pass over a network.

    Args:
        blocks: block -> its report.
        unsupported: block -> why it cannot be rewritten; its layers are swapped one by one.
        faster_dense: block -> why it stays unchanged, with masked dense weights; `blocks` has the slower rewriting.
        variants_ms: container of blocks -> variant -> estimated milliseconds of all its blocks; empty on a CPU.
        norms: problem of feature-major norms, as text -> their kernel; empty on a CPU.
    """

    blocks: dict[str, BlockReport] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    faster_dense: dict[str, str] = field(default_factory=dict)
    variants_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    norms: dict[str, NormReport] = field(default_factory=dict)

    @property
    def plan(self) -> FusionPlan:
        return FusionPlan({name: block.plan for name, block in self.rewritten.items()}, tuple(self.faster_dense))

    @property
    def rewritten(self) -> dict[str, BlockReport]:
        """The replaced blocks."""
        return {name: block for name, block in self.blocks.items() if name not in self.faster_dense}

    @property
    def product_of(self) -> dict[str, ProductReport]:
        """Linear in a replaced block -> its product."""
        return {
            layer: product
            for block in self.rewritten.values()
            for product in block.products
            for layer in product.layers
        }

    @property
    def layout(self) -> str:
        """feature_major if the residual stream of any block is, else row_major."""
        return min((block.layout for block in self.rewritten.values()), default="row_major")

    def layers_of(self, block: str) -> dict[str, ProductReport]:
        """Linear of a block in `blocks` -> its product."""
        return {layer: product for product in self.blocks[block].products for layer in product.layers}

    def summary(self) -> dict[str, int]:
        """Description of each distinct rewriting, or reason against one -> number of blocks."""
        unfused = {f"cannot be rewritten, {which}: the block {why}": count for which, why, count in self._count_plain()}
        unchanged = Counter(f"as they are: {why}" for why in self.faster_dense.values())
        done = Counter(block.describe() for block in self.rewritten.values())
        return dict(done + unchanged) | unfused

    def headlines(self) -> list[str]:
        """Short lines for a terminal: number of rewritten blocks by layout, with their kernels, and of others by reason."""
        layouts = Counter(block.layout for block in self.rewritten.values())
        counts = {f"rewritten, {layout}: {self._kernels_of(layout)}": count for layout, count in layouts.items()}
        counts |= Counter(f"left as before: {why}" for why in self.faster_dense.values())
        counts |= {f"not rewritten, {which}: it {why}": count for which, why, count in self._count_plain()}
        return [f"{counted(count, 'block')} {what}" for what, count in counts.items()]

    def _count_plain(self) -> list[tuple[str, str, int]]:
        """Per reason: its first block and the number of others as text, the reason, and the number of blocks."""
        by_reason: dict[str, list[str]] = {}
        for name, why in self.unsupported.items():
            by_reason.setdefault(why, []).append(name)
        return [
            (name + f" and {len(more)} more" * bool(more), why, 1 + len(more))
            for why, (name, *more) in by_reason.items()
        ]

    def _kernels_of(self, layout: str) -> str:
        """Text such as `12 products by gathered_sm90, 4 by dense_linear, 2 by others`."""
        blocks = [block for block in self.rewritten.values() if block.layout == layout]
        kernels = Counter(product.kernel for block in blocks for product in block.products)
        (first, most), *rest = kernels.most_common(MOST_KERNELS)
        others = kernels.total() - most - sum(count for _, count in rest)
        parts = [f"{counted(most, 'product')} by {first}", *(f"{count} by {kernel}" for kernel, count in rest)]
        return ", ".join(parts + [f"{others} by others"] * bool(others))

    def to_json(self) -> dict[str, Any]:
        """Fields of the result: distinct blocks, times of variants, and kernels of norms."""
        return {
            "fused_blocks": self.summary(),
            "block_variants_ms": self.variants_ms,
            "block_norms": {problem: norm.to_json() for problem, norm in self.norms.items()},
        }
