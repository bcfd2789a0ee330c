"""What the pass did, block by block and product by product."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsefront.inference.fusion.plan import BlockPlan, FusionPlan


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
        vanished_inputs, vanished_outputs: hidden features that it no longer reads or computes.
        latency_us: of the kernel that runs; None where nothing was timed.
        candidates: kernel -> microseconds, dense included.
        refusals: kernel -> why it cannot be used.
        relative_error: against the fp64 product; None where it was not checked.
        timed_as: another product, equal in shape, epilogue and tile lengths, whose times these are.
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
    refusals: dict[str, str] = field(default_factory=dict)
    relative_error: float | None = None
    timed_as: str | None = None

    def layers_in(self, block: str) -> tuple[str, ...]:
        """The names of the Linears inside their block."""
        return tuple(name.removeprefix(f"{block}.") for name in self.layers)

    def describe(self) -> str:
        """`query+key+value 12288x1024->3072 feature_to_row gathered_cuda`."""
        names = "+".join(name.rsplit(".", 1)[-1] for name in self.layers)
        parts = [names, f"{self.m}x{self.k}->{self.n}", self.layout, self.kernel]
        parts += [self.activation] * (self.activation != "none") + ["residual"] * self.residual
        return " ".join(parts)


@dataclass(frozen=True)
class BlockReport:
    """One block that was rewritten.

    Args:
        layout: of the residual stream.
        norms: LayerNorms that are feature-major.
        relative_error: of its output against the block with masked dense weights; None where it was not checked.
    """

    layout: str
    products: list[ProductReport]
    norms: int
    relative_error: float | None = None

    @property
    def plan(self) -> BlockPlan:
        """Kernels by the names of the Linears in the network."""
        return BlockPlan(self.layout, {"+".join(product.layers): product.kernel for product in self.products})

    def describe(self) -> str:
        return f"{self.layout}: " + "; ".join(product.describe() for product in self.products) + f"; {self.norms} norms"


@dataclass(frozen=True)
class FusionReport:
    """The whole network.

    Args:
        blocks: block -> what was done.
        refusals: block -> why it stays as it is.
        variants_ms: container of blocks -> way of running them -> estimated milliseconds of all of them; empty on a CPU.
    """

    blocks: dict[str, BlockReport] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    variants_ms: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def plan(self) -> FusionPlan:
        return FusionPlan({name: block.plan for name, block in self.blocks.items()})

    @property
    def product_of(self) -> dict[str, ProductReport]:
        """Linear -> the product that computes it."""
        return {
            layer: product for block in self.blocks.values() for product in block.products for layer in product.layers
        }

    def lines(self) -> list[str]:
        """One per distinct rewriting or reason, with the number of blocks."""
        done = Counter(block.describe() for block in self.blocks.values())
        kept = Counter(self.refusals.values())
        return [f"{count} x {what}" for what, count in done.items()] + [
            f"{count} blocks stay as they are: {why}" for why, count in kept.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """As in the row: distinct reports once, with the blocks that they are about left to `kernel_per_layer`."""
        return {"fused": self.lines(), "fused_blocks": len(self.blocks), "variants_ms": self.variants_ms} | (
            {"unfused_blocks": self.refusals} if self.refusals else {}
        )

    def to_full_json(self) -> dict[str, Any]:
        return asdict(self)
