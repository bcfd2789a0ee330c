"""The rows of the study: what each measures, and in which order. The targets come first, then fp16, then the rest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

MODELS = ("bert_base", "bert_large", "vit_b_16", "vit_l_16", "resnet50")
SIZES: dict[str, tuple[tuple[int, int | None], ...]] = {  # model -> (batch size, sequence length)
    "bert_large": ((32, 384), (8, 384)),
    "bert_base": ((128, 128), (32, 128), (8, 128)),
    "vit_l_16": ((256, None), (64, None)),
    "vit_b_16": ((256, None), (64, None)),
    "resnet50": ((128, None), (32, None)),
}
SPARSITIES = (0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Setting:
    """A pattern as it is asked for; `sparsity` is a fraction, and blocks may be "64x128"."""

    pattern: str
    granularity: int | str | None
    sparsity: float
    group_m: int | None = None


SETTINGS = (
    *(Setting("tile_wise", 128, sparsity) for sparsity in SPARSITIES),
    *(Setting("tile_wise", 64, sparsity) for sparsity in SPARSITIES),
    *(Setting("block_wise", 64, sparsity) for sparsity in (0.5, 0.75, 0.8, 0.9)),
    *(Setting("vector_wise", 32, sparsity) for sparsity in SPARSITIES),
    Setting("n_m", None, 0.5, group_m=4),
)


@dataclass(frozen=True)
class Point:
    """One row.

    Args:
        sequence_length: None for images.
        kernel_mode: auto or sparse, as `KernelChoice` takes it.
        pattern_settings: further settings of the pattern, "whole_tiles=true input_multiple=16"; empty: its defaults.
    """

    model: str
    batch: int
    sequence_length: int | None
    dtype: str
    setting: Setting
    kernel_mode: str = "auto"
    pattern_settings: str = ""

    @property
    def columns(self) -> dict[str, str]:
        """What tells rows apart, as the CSV has it."""
        return {
            "model": self.model,
            "batch": str(self.batch),
            "sequence_length": _text(self.sequence_length),
            "dtype": self.dtype,
            "pattern": self.setting.pattern,
            "granularity": _text(self.setting.granularity),
            "group_m": _text(self.setting.group_m),
            "sparsity": f"{self.setting.sparsity:g}",
            "allocation": "per_layer",
            "kernel_mode": self.kernel_mode,
            "pattern_settings": self.pattern_settings,
            "attention_mask": "none",
        }

    @property
    def place(self) -> tuple:
        """What rows share that have the same dense baseline."""
        return self.model, self.batch, self.sequence_length, self.dtype

    @property
    def size(self) -> str:
        return f"{self.batch}" if self.sequence_length is None else f"{self.batch}x{self.sequence_length}"

    def __str__(self) -> str:
        unit = "" if self.setting.granularity is None else f" {self.setting.granularity}"
        return (
            f"{self.model} {self.size} {self.dtype} {self.setting.pattern}{unit} {self.setting.sparsity:.0%}"
            f" kernel={self.kernel_mode}"
        )


@dataclass(frozen=True)
class Target:
    """What a row has to reach; `stretch`: what would be better still, or None."""

    point: Point
    speedup: float
    stretch: float | None = None


def _bars() -> Iterator[Target]:
    tile = {sparsity: Setting("tile_wise", 128, sparsity) for sparsity in SPARSITIES}
    for sparsity, speedup, stretch in ((0.5, 1.35, 1.4), (0.75, 1.7, 1.9), (0.9, 2.1, 2.4)):
        yield Target(Point("bert_large", 32, 384, "fp16", tile[sparsity]), speedup, stretch)
    for sparsity, speedup, stretch in ((0.5, 1.2, None), (0.75, 1.5, 1.6), (0.9, 1.75, None)):
        yield Target(Point("bert_base", 128, 128, "fp16", tile[sparsity]), speedup, stretch)
    for sparsity, speedup, stretch in ((0.75, 1.0, 1.15), (0.9, 1.1, None)):
        yield Target(Point("bert_base", 8, 128, "fp16", tile[sparsity]), speedup, stretch)
    yield Target(Point("vit_l_16", 256, None, "fp16", tile[0.75]), 1.6, 1.8)
    yield Target(Point("vit_l_16", 256, None, "fp16", Setting("block_wise", 64, 0.8)), 1.44)
    yield Target(Point("bert_large", 32, 384, "bf16", Setting("n_m", None, 0.5, group_m=4)), 1.15)
    yield Target(Point("resnet50", 128, None, "fp16", Setting("block_wise", 64, 0.75)), 1.1)
    yield Target(Point("resnet50", 128, None, "fp16", Setting("block_wise", 64, 0.9)), 1.25)


TARGETS = tuple(_bars())


def all_points() -> list[Point]:
    """Every row once, in the order in which they are measured."""
    fp16 = [
        Point(model, batch, length, "fp16", setting)
        for model, sizes in SIZES.items()
        for batch, length in sizes
        for setting in SETTINGS
    ]
    two_four = [replace(point, dtype="bf16") for point in fp16 if point.setting.pattern == "n_m"]
    column = [
        Point("bert_large", 32, 384, "bf16", setting, mode)
        for setting, mode in product(SETTINGS, ("auto", "sparse"))
        if setting.pattern != "n_m"
    ]
    ordered = [target.point for target in TARGETS] + fp16
    forced = [replace(point, kernel_mode="sparse") for point in (*fp16, *two_four)]
    by_network = sorted(
        [*two_four, *column, *forced], key=lambda point: (point.dtype != "fp16", *map(str, point.place))
    )
    return list(dict.fromkeys((*ordered, *by_network)))


def _text(value: int | str | None) -> str:
    return "" if value is None else str(value)
