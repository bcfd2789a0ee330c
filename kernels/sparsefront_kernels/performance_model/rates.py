"""What a GPU reaches, and the model's constants on it: one JSON file per GPU model.

    {"gpu": "NVIDIA H200", "num_sms": 132, "dense_tflops": {"fp16": 757.0}, "copy_gb_per_s": 4220.0,
     "made_with": {"source": "h200.csv", "commit": "abc", "date": "2026-01-31"},
     "constants": {"gathered_sm90 fp16": {"launch": 1.9, ...}},
     "errors": {"gathered_sm90 fp16": {"rows": 216, "median": 0.05, "p90": 0.14, "held_out_median": 0.06, "held_out_p90": 0.16}}}

A file for the GPUs on which we measured ships with the package; a user's own, in $SPARSEFRONT_KERNELS_CACHE
(~/.cache/sparsefront_kernels where that is not set), replaces it, unless it cannot be read.
"""

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sparsefront_kernels.tuning import store

SHIPPED = Path(__file__).parent / "shipped"
FOLDER, OLD_FOLDER = "performance_model", "model"  # of the cache; files in the old one are still read


@dataclass(frozen=True)
class DeviceRates:
    """A GPU model as the performance model sees it.

    Args:
        gpu: the model's name, as torch gives it.
        num_sms: streaming multiprocessors.
        dense_tflops: number format -> TFLOP/s of a large dense product.
        copy_gb_per_s: of a device-to-device copy, bytes read and written.
        made_with: where the rates were measured.
        constants: kernel with number format -> the constants of `work.CONSTANTS`, fitted to measurements.
        errors: likewise -> how far the predictions were from those measurements.
    """

    gpu: str
    num_sms: int
    dense_tflops: dict[str, float]
    copy_gb_per_s: float
    made_with: dict[str, str] = field(default_factory=dict)
    constants: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)

    def tflops(self, dtype: str) -> float:
        """The dense rate; fp16 and bf16 stand in for one another.

        Raises:
            KeyError: it was not measured.
        """
        other = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
        return self.dense_tflops[dtype if dtype in self.dense_tflops else other]

    def memory_us(self, moved_bytes: float) -> float:
        return moved_bytes / self.copy_gb_per_s / 1e3

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


@functools.cache
def device_rates(gpu: str) -> DeviceRates | None:
    """Of a GPU model: the user's own file, or else the shipped one; None where there is neither."""
    places = (user_file(gpu), store.user_file(gpu, OLD_FOLDER), SHIPPED / store.file_name(gpu))
    return store.first_readable(places, load)


def rates_for(gpu: str) -> DeviceRates | None:
    """Those of a GPU model, or else of the one that stands in for it, which they name."""
    if (rates := device_rates(gpu)) is not None or (other := store.stand_in(gpu)) is None:
        return rates
    return device_rates(other)


def load(path: Path) -> DeviceRates:
    """Read what `save` wrote."""
    return DeviceRates(**json.loads(path.read_text(encoding="utf-8")))


def user_file(gpu: str) -> Path:
    """Where a user's own rates and constants for a GPU model are kept."""
    return store.user_file(gpu, FOLDER)
