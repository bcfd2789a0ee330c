"""Where, in which type and how often a network is measured."""

from dataclasses import dataclass, field

import torch

from sparsefront.errors import InvalidSetting
from sparsefront.measure.wrapping import WRAPPINGS

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEVICES = ("auto", "cpu", "cuda")
FEWEST_SAMPLES = 5  # below this a p20 and a p80 say nothing


@dataclass(frozen=True)
class Measure:
    """Settings of group `measure`.

    Args:
        device: auto (a CUDA GPU where there is one), cpu or cuda.
        dtype: auto (fp16 on CUDA, fp32 on a CPU), fp32, fp16 or bf16: of weights and activations, accuracy included.
        batch_size: samples per timed forward, and per batch of an evaluation.
        sequence_length: tokens per sample in the timed forward; null = the dataset's.
        warmup: untimed rounds before the samples of a repeat.
        samples: timed forwards of each network per repeat.
        repeats: how often the interleaved timing is done; the interval on the speedup comes from all of them.
        wrappings: ways to run a network, each tried, the fastest kept; dense and sparse are offered the same ones.
        evaluate_limit: evaluations stop after this many samples; null = the whole split.
    Raises:
        InvalidSetting: a value that cannot be used, or a device that is not here.
    """

    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 32
    sequence_length: int | None = None
    warmup: int = 10
    samples: int = 30
    repeats: int = 3
    wrappings: list[str] = field(default_factory=lambda: ["eager", "cuda_graph", "compile_cuda_graph"])
    evaluate_limit: int | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise InvalidSetting for the first value that cannot be used on this machine."""
        fewest = {"batch_size": 1, "warmup": 0, "samples": FEWEST_SAMPLES, "repeats": 1}
        optional = {"sequence_length": 1, "evaluate_limit": 1}
        fewest |= {key: least for key, least in optional.items() if getattr(self, key) is not None}
        for key, least in fewest.items():
            if getattr(self, key) < least:
                raise InvalidSetting(key, getattr(self, key), f"is a whole number of at least {least}")
        if self.dtype not in ("auto", *DTYPES):
            raise InvalidSetting("dtype", self.dtype, f"is one of auto, {', '.join(DTYPES)}")
        device = self.torch_device
        if device.type == "cpu" and self.dtype == "fp16":
            raise InvalidSetting("dtype", self.dtype, "is for CUDA devices; on a CPU measure in fp32 or bf16")
        self._check_wrappings(device)

    def _check_wrappings(self, device: torch.device) -> None:
        unknown = [name for name in self.wrappings if name not in WRAPPINGS]
        if unknown or not self.wrappings:
            raise InvalidSetting("wrappings", self.wrappings, f"is a list of one or more of {', '.join(WRAPPINGS)}")
        if device.type == "cpu" and "eager" not in self.wrappings:
            raise InvalidSetting("wrappings", self.wrappings, "needs eager on a CPU: the others want a CUDA device")

    @property
    def torch_device(self) -> torch.device:
        """The device that `device` means on this machine."""
        if self.device not in DEVICES:
            raise InvalidSetting("device", self.device, f"is one of {', '.join(DEVICES)}")
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise InvalidSetting("device", self.device, "no CUDA device here; use auto or cpu, or a machine with a GPU")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type that `dtype` means on `torch_device`."""
        if self.dtype == "auto":
            return torch.float16 if self.torch_device.type == "cuda" else torch.float32
        return DTYPES[self.dtype]
