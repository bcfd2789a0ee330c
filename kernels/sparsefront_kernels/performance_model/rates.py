"""Rates of a GPU, and the model's constants on it: one JSON file per GPU model.

    {"gpu": "NVIDIA H200", "num_sms": 132, "dense_tflops": {"fp16": 757.0}, "copy_gb_per_s": 4220.0,
     "made_with": {"source": "h200.csv", "commit": "abc", "date": "2026-01-31"},
     "constants": {"gathered_sm90 fp16": {"launch": 1.9, ...}},
     "errors": {"gathered_sm90 fp16": {"rows": 216, "median": 0.05, "p90": 0.14, "held_out_median": 0.06, "held_out_p90": 0.16}}}

A file for the GPUs on which we measured ships with the package; a user's own in $SPARSEFRONT_KERNELS_CACHE (default
~/.cache/sparsefront_kernels) takes precedence if it can be read.
"""

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sparsefront_kernels.tuning import store

SHIPPED = Path(__file__).parent / "shipped"
FOLDER = "performance_model"  # of the cache


@dataclass(frozen=True)
class DeviceRates:
    """A GPU model as the performance model sees it.

    Args:
        gpu: the model's name as reported by torch.
        num_sms: streaming multiprocessors.
        dense_tflops: number format -> TFLOP/s of a large dense product.
        copy_gb_per_s: of a device-to-device copy, bytes read and written.
        made_with: source of the rates.
        constants: kernel with number format -> the constants of `work.CONSTANTS`, fitted to measurements.
        errors: likewise -> errors of the predictions for these measurements.
    """

    gpu: str
    num_sms: int
    dense_tflops: dict[str, float]
    copy_gb_per_s: float
    made_with: dict[str, str] = field(default_factory=dict)
    constants: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)

    def tflops(self, dtype: str) -> float:
        """The dense rate; fp16 and bf16 stand in for each other.

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
    """Rates of a GPU model: the user's file, or else the shipped one; None if there is neither."""
    return store.first_readable((user_file(gpu), SHIPPED / store.file_name(gpu)), load)


def rates_for(gpu: str) -> DeviceRates | None:
    """Rates of a GPU model, or of the model that stands in for it, which they name."""
    return store.own_or_stand_in(gpu, device_rates)


def load(path: Path) -> DeviceRates:
    """Read the result of `save`."""
    return DeviceRates(**json.loads(path.read_text(encoding="utf-8")))


def user_file(gpu: str) -> Path:
    """Path of a user's own rates and constants for a GPU model."""
    return store.user_file(gpu, FOLDER)
