"""What the pass did, block by block, and its choices, small enough to lie beside an export."""

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
    """One block.

    Args:
        layout: of its residual stream, one of LAYOUTS.
        kernels: names of the Linears of a product, joined by "+" -> its kernel.
    """

    layout: str
    kernels: dict[str, str]


@dataclass(frozen=True)
class FusionPlan:
    """The whole network.

    Args:
        blocks: block -> how it is rewritten.
        faster_dense: blocks that stay as they are.
        layers: pruned layer outside of these, or one in low precision -> its kernel.
        precision: of kernels beside those of 16 bits.
        calibration: of precision fp8_static, Linear -> the largest absolute value that it receives.
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
        """What `save` wrote.

        Raises:
            InvalidSetting: the file is missing or of another format version (key `plan`).
        """
        if not file.is_file():
            raise InvalidSetting("plan", file, "no such file")
        content = json.loads(file.read_text(encoding="utf-8"))
        if (version := content.pop("format_version", None)) != FORMAT_VERSION:
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
    """What the pass over blocks may do.

    Args:
        joined: Linears that read the same activation are one product.
        activation: fused into the product before it. Without it hidden features stay as they are too, for products are then
            no neighbors.
        residual: fused into the product before it, or into the norm behind it.
        residual_in_norm: where the product's kernel cannot fuse the residual and its sum is normalised, the norm adds it, if
            ours runs it; else it has a pass of its own.
        compact: hidden features that are pruned vanish between two products, and values that are behind attention.
        layouts: of the residual stream, among which time decides; the first where nothing is timed.
    Raises:
        InvalidSetting: no layout, or one that does not exist.
    """

    joined: bool = True
    activation: bool = True
    residual: bool = True
    residual_in_norm: bool = True
    compact: bool = True
    layouts: Annotated[tuple[Literal[LAYOUTS], ...], Field(min_length=1)] = LAYOUTS  # type: ignore[valid-type]


ALL_PARTS = FusionParts()


# What the pass did, block by block and product by product.

MOST_KERNELS = 2  # that a headline names: a line of a terminal


@dataclass(frozen=True)
class ProductReport:
    """One product.

    Args:
        layers: its Linears, by their names in the network.
        kernel, family: what runs it, and the storage of its weight.
        m, k, n: of the product; n and k without the hidden features that vanished.
        density: fraction of the weights [N, K] of its Linears, as they were, that masks keep.
        layout: of X and Y.
        activation, residual: fused into the product.
        vanished_inputs: hidden features that are gone, and inputs that it no longer reads since they are constants.
        vanished_outputs: hidden features that it no longer computes.
        latency_us: of the kernel that runs; None where nothing was timed.
        candidates: kernel -> microseconds, dense included.
        unsupported: kernel -> why it cannot be used.
        launch: launch parameters of the kernel that runs, by name.
        relative_error: against the fp64 product, in low precision that of the quantised operands; None where it was not
            checked.
        quantization_error: against the fp64 product of the operands before quantisation; None in 16 bits.
        timed_as: another product, equal in shape, epilogue and tile lengths, whose times these are.
        timed_like: another product, nearly equal, whose slow kernels were not timed for this one.
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
        """The names of the Linears inside their block."""
        return tuple(name.removeprefix(f"{block}.") for name in self.layers)

    def timing(self) -> str:
        """Whose times these are, where they are not all its own."""
        notes = [f"times are those of {self.timed_as}"] if self.timed_as else []
        notes += [f"timed with the kernels that were fast in {self.timed_like} alone"] if self.timed_like else []
        return "; ".join(notes)

    def describe(self) -> str:
        """`query+key+value 12288x1024->3072 feature_to_row gathered_sm90`."""
        names = "+".join(name.rsplit(".", 1)[-1] for name in self.layers)
        parts = [names, f"{self.m}x{self.k}->{self.n}", self.layout, self.kernel]
        parts += [self.activation] * (self.activation != "none") + ["residual"] * self.residual
        return " ".join(parts)


@dataclass(frozen=True)
class NormReport:
    """Feature-major norms of one problem.

    Args:
        kernel: what runs them, "triton" or "cuda".
        launch: launch parameters of the kernel, by name.
        latency_us: of the launch that runs; None where this pass did not time it.
        candidates: launch -> microseconds, where this pass timed them.
        unsupported: launch -> why it cannot be used; a wrong result is one reason.
    """

    kernel: str
    launch: dict[str, Any] = field(default_factory=dict)
    latency_us: float | None = None
    candidates: dict[str, float] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Keys of which nothing is known are absent; `kernel` is called `chosen`, as that of a layer."""
        content = {"chosen" if key == "kernel" else key: value for key, value in asdict(self).items()}
        return {key: value for key, value in content.items() if value not in (None, {})}


@dataclass(frozen=True)
class BlockReport:
    """One block that was rewritten.

    Args:
        layout: of the residual stream.
        norms: norms that are not PyTorch's.
        residual_norms: of these, those that add a residual to what a product computes.
        relative_error: of its output against the block with masked dense weights; None where it was not checked.
        norm_launches: that these norms run through, of rows "cuda_rows"; none where plain PyTorch runs them.
        quantization_error: of a block in low precision, of its output against the block with masked dense weights; its
            `relative_error` is then against quantised operands multiplied in float32.
    """

    layout: str
    products: list[ProductReport]
    norms: int
    relative_error: float | None = None
    residual_norms: int = 0
    norm_launches: tuple[str, ...] = ()
    quantization_error: float | None = None

    @property
    def plan(self) -> BlockPlan:
        """Kernels by the names of the Linears in the network."""
        return BlockPlan(self.layout, {"+".join(product.layers): product.kernel for product in self.products})

    def describe(self) -> str:
        norms = f"{self.norms} norms" + f" ({self.residual_norms} add the residual)" * (self.residual_norms > 0)
        norms += f" by {', '.join(dict.fromkeys(self.norm_launches))}" * bool(self.norm_launches)
        return f"{self.layout}: " + "; ".join([*(product.describe() for product in self.products), norms])


@dataclass(frozen=True)
class FusionReport:
    """The whole network.

    Args:
        blocks: block -> what was done.
        unsupported: block -> why it cannot be rewritten, so that its layers are swapped one by one.
        faster_dense: block -> why it stays as it is, with masked dense weights; `blocks` holds what it was compared with.
        variants_ms: container of blocks -> way of running them -> estimated milliseconds of all of them; empty on a CPU.
        norms: problem of feature-major norms, in words -> what runs them; empty on a CPU.
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
        """The blocks that were replaced."""
        return {name: block for name, block in self.blocks.items() if name not in self.faster_dense}

    @property
    def product_of(self) -> dict[str, ProductReport]:
        """Linear -> the product that computes it."""
        return {
            layer: product
            for block in self.rewritten.values()
            for product in block.products
            for layer in product.layers
        }

    @property
    def layout(self) -> str:
        """Of the residual streams: feature_major where any block's is."""
        return min((block.layout for block in self.rewritten.values()), default="row_major")

    def layers_of(self, block: str) -> dict[str, ProductReport]:
        """The Linears of a block that was taken apart -> their product."""
        return {layer: product for product in self.blocks[block].products for layer in product.layers}

    def summary(self) -> dict[str, int]:
        """A line per distinct rewriting, or reason against one -> number of blocks."""
        unfused = {f"cannot be rewritten, {which}: the block {why}": count for which, why, count in self._unsupported()}
        kept = Counter(f"as they are: {why}" for why in self.faster_dense.values())
        done = Counter(block.describe() for block in self.rewritten.values())
        return dict(done + kept) | unfused

    def headlines(self) -> list[str]:
        """The same in short, for a terminal: of rewritten blocks how many have which layout, and what runs their products."""
        layouts = Counter(block.layout for block in self.rewritten.values())
        counts = {f"rewritten, {layout}: {self._kernels_of(layout)}": count for layout, count in layouts.items()}
        counts |= Counter(f"left as before: {why}" for why in self.faster_dense.values())
        counts |= {f"not rewritten, {which}: it {why}": count for which, why, count in self._unsupported()}
        return [f"{counted(count, 'block')} {what}" for what, count in counts.items()]

    def _unsupported(self) -> list[tuple[str, str, int]]:
        """Of each reason its first block and how many more, the reason, and how many they are."""
        named: dict[str, list[str]] = {}
        for name, why in self.unsupported.items():
            named.setdefault(why, []).append(name)
        return [
            (name + f" and {len(more)} more" * bool(more), why, 1 + len(more)) for why, (name, *more) in named.items()
        ]

    def _kernels_of(self, layout: str) -> str:
        """`12 products by gathered_sm90, 4 by dense_linear, 2 by others`."""
        blocks = [block for block in self.rewritten.values() if block.layout == layout]
        kernels = Counter(product.kernel for block in blocks for product in block.products)
        (first, most), *rest = kernels.most_common(MOST_KERNELS)
        others = kernels.total() - most - sum(count for _, count in rest)
        parts = [f"{counted(most, 'product')} by {first}", *(f"{count} by {kernel}" for kernel, count in rest)]
        return ", ".join(parts + [f"{others} by others"] * bool(others))

    def to_json(self) -> dict[str, Any]:
        """What the result says of it: a line per distinct block, times of ways to run them, and kernels of their norms."""
        return {
            "fused_blocks": self.summary(),
            "block_variants_ms": self.variants_ms,
            "block_norms": {problem: norm.to_json() for problem, norm in self.norms.items()},
        }
