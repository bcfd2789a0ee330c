"""Settings of group `measure`: device, dtype, sizes and protocol of a measurement."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.measure.attention import BACKENDS
from sparsefront.measure.execution_mode import EXECUTION_MODES
from sparsefront.measure.speedup import FEWEST_REPEATS
from sparsefront.settings_class import Dtype, ListOf, OneOrMore, settings_class

DenseLow = Literal["fp8", "int8", "int8_weight_only"]
INT8_WEIGHT_ONLY: DenseLow = "int8_weight_only"
DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FEWEST_SAMPLES = 5  # fewer make p20 and p80 meaningless
CACHE_MULTIPLE = 64  # attention runs faster over full blocks of keys
Samples = Annotated[int, Field(ge=FEWEST_SAMPLES)]
Sizes = PositiveInt | OneOrMore[PositiveInt]


# Variants of a network, see `measure.variants`; their names are here, as evaluations depend on no kernel:
#
#     folded_batch_norm    BatchNorm folded into the convolution before it
#     fused_epilogue       ReLU, and a shortcut added before it, fused into the sparse convolution before them; activations
#                          fused into the Linear before them
#     patch_product        convolutions that cut an image into patches as one product
#     fused_qkv            Linear layers that read the same tensor as one product
#     channels_last        activations and filters of convolutions in channels-last memory
#     fused_graph          our own fused graph with every layer dense, if the caller has one
#     sdpa_flash, sdpa_cudnn, sdpa_efficient  PyTorch's attention on that backend only
#
# Dense and sparse networks get the same ones, where they apply.

FUSED_GRAPH, PATCH_PRODUCT = "fused_graph", "patch_product"
VARIANTS = ("folded_batch_norm", "fused_epilogue", PATCH_PRODUCT, "fused_qkv", "channels_last", FUSED_GRAPH, *BACKENDS)


FEWEST_REQUESTS = 100  # below which a p99 is the slowest request


def require_cache(prompt_length: int, cache_length: int, key: str) -> None:
    """Raise InvalidSetting where the cache has no room for a token after the prompt."""
    if cache_length <= prompt_length:
        allowed = f"is too short for {prompt_length} tokens and the next one: at least {prompt_length + 1}"
        raise InvalidSetting(key, cache_length, allowed)


@settings_class()
class Measure:
    """Settings of group `measure`.

    Args:
        mode: forward times a whole forward pass; decode times a language model's generation with a static KV cache: a step of
            one token per row and, separately, the prefill of the prompt; see `measure.decode`. serve times forwards and then
            serves requests as they arrive, see `measure.serving`, in serving.json of the run's folder.
        device: auto (a CUDA GPU where there is one), cpu or cuda.
        dtype: auto (fp16 on CUDA, fp32 on a CPU), fp32, fp16 or bf16: of weights and activations, accuracy included.
        rates: requests per second of mode=serve, tried in this order; served for `serve_seconds` each.
        wait_ms: how long mode=serve waits for a fuller batch; `batch_size` is the largest.
        p99_ms: the 99th percentile within which mode=serve counts requests per second.
        batch_size: samples per timed forward, and per batch of an evaluation. In a list the first value gives the result's
            latency, the others points of its curve.
        sequence_length: tokens per sample in the timed forward, or per prompt with mode=decode; null = the dataset's. May be a
            list, as `batch_size`.
        cache_length: tokens that the KV cache of mode=decode holds; null = the next multiple of 64 above the prompt.
        image_size: side in pixels in the timed forward; null = the dataset's. Images are resized to it, weights stay: a network
            whose convolutions take any size is evaluated on small images and timed on large ones.
        parts: parts of a translation network to time separately as well: encoder; decoder_step, one token of `batch_size`
            sentences with dataset.beam hypotheses each, after half of `sequence_length` tokens; translation, beam search
            over `batch_size` sentences up to `sequence_length` tokens each.
        lengths: fixed times `sequence_length` alone; dataset also times the batches of the evaluation set at their own
            lengths, in `latency_*_dataset_ms`; see `stages.latency.dataset_latency`.
        warmup: untimed rounds before the samples of a repeat.
        samples: timed forwards of each network per repeat.
        repeats: repeats of the interleaved timing; the interval on the speedup comes from all of them. With fewer than 5
            none is shown, and nothing counts as faster.
        execution_modes: modes to try, the same for dense and sparse; the fastest is kept.
        variants: rewrites of a network with the same outputs, tried likewise; may be empty.
        autotune_seconds: budget of the search for the fastest execution, for each network, see `ExecutionSearch`; the search for
            kernels has as much as two networks.
        evaluate_limit: evaluations stop after the batch that reaches this many samples; null = the whole split.
        latency: false times nothing, so that runs may share the device; the result then holds accuracy alone.
        dense_low: low precisions to measure the dense network in too, of which the fastest counts; null = see
            `Experiment.dense_low`. With mode=decode only int8_weight_only, by torchao.
    Raises:
        InvalidSetting: a value that cannot be used, or a device that is missing.
    """

    mode: Literal["forward", "decode", "serve"] = "forward"
    rates: ListOf[PositiveFloat] = field(default_factory=list)
    wait_ms: NonNegativeFloat = 2.0
    p99_ms: PositiveFloat = 20.0
    serve_seconds: PositiveFloat = 10.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", Dtype] = "auto"
    batch_size: Sizes = 32
    sequence_length: Sizes | None = None
    cache_length: PositiveInt | None = None
    image_size: PositiveInt | None = None
    parts: ListOf[Literal["encoder", "decoder_step", "translation"]] = field(default_factory=list)
    lengths: Literal["fixed", "dataset"] = "fixed"
    warmup: NonNegativeInt = 10
    samples: Samples = 30
    repeats: Annotated[int, Field(ge=1, le=100_000)] = FEWEST_REPEATS
    execution_modes: OneOrMore[Literal[EXECUTION_MODES]] = field(  # type: ignore[valid-type]
        default_factory=lambda: ["eager", "cuda_graph", "compile_cuda_graph", "max_autotune_cuda_graph"]
    )
    variants: ListOf[Literal[VARIANTS]] = field(default_factory=lambda: list(VARIANTS))  # type: ignore[valid-type]
    autotune_seconds: NonNegativeFloat = 30.0
    evaluate_limit: PositiveInt | None = None
    latency: bool = True
    dense_low: ListOf[DenseLow] | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise InvalidSetting for the first value that cannot be used on this machine."""
        self._check_swept("batch_size", self.batch_sizes)
        self._check_swept("sequence_length", self.sequence_lengths)
        self._check_swept("dense_low", self.dense_low or ())
        self._check_swept("parts", self.parts)
        self._check_mode()
        device = self.torch_device
        if device.type == "cpu" and self.dtype == "fp16":
            raise InvalidSetting("dtype", self.dtype, "is for CUDA devices; on a CPU measure in fp32 or bf16")
        if device.type == "cpu" and "eager" not in self.execution_modes:
            raise InvalidSetting(
                "execution_modes", self.execution_modes, "needs eager on a CPU: the others want a CUDA device"
            )

    def _check_mode(self) -> None:
        """Check settings that only one mode takes."""
        low = self.dense_low or ()
        if (self.mode == "serve") != bool(self.rates):
            allowed = (
                "gives mode=serve its requests per second" if self.mode == "serve" else "is of mode=serve: leave it []"
            )
            raise InvalidSetting("rates", self.rates, allowed)
        if self.mode == "serve" and not self.latency:
            raise InvalidSetting("latency", self.latency, "times nothing: true with mode=serve")
        self._check_swept("rates", self.rates)
        for rate in self.rates:
            if rate * self.serve_seconds < FEWEST_REQUESTS:
                least = f"{FEWEST_REQUESTS / rate:g} for {rate:g} requests/s: a p99 needs {FEWEST_REQUESTS} requests"
                raise InvalidSetting("serve_seconds", self.serve_seconds, f"is at least {least}")
        if self.mode != "decode":
            if self.cache_length is not None:
                raise InvalidSetting("cache_length", self.cache_length, "is of mode=decode: leave it null")
            if INT8_WEIGHT_ONLY in low:
                raise InvalidSetting("dense_low", list(low), f"{INT8_WEIGHT_ONLY} is of mode=decode: fp8, int8")
            return
        if self.lengths == "dataset":
            raise InvalidSetting("lengths", self.lengths, "times whole forwards: fixed with mode=decode")
        if any(name != INT8_WEIGHT_ONLY for name in low):
            raise InvalidSetting("dense_low", list(low), f"is {INT8_WEIGHT_ONLY} or nothing with mode=decode")
        for length in self.sequence_lengths:
            if length is not None:
                require_cache(length, self.cache_length_for(length), key="cache_length")

    @property
    def fingerprinted(self) -> tuple[str, ...]:
        """Settings that change nothing in this mode, left out of the keys of stored measurements."""
        return () if self.mode == "serve" else ("rates", "wait_ms", "p99_ms", "serve_seconds")

    def cache_length_for(self, prompt_length: int) -> int:
        """Tokens that the cache holds for a prompt of this length."""
        above = -(-(prompt_length + 1) // CACHE_MULTIPLE) * CACHE_MULTIPLE
        return above if self.cache_length is None else self.cache_length

    def _check_swept(self, key: str, values: Sequence[float | str | None]) -> None:
        if len(set(values)) < len(values):
            raise InvalidSetting(key, getattr(self, key), "names a value twice")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes to time; the first is the result's own, and evaluations use it."""
        return tuple(self.batch_size) if isinstance(self.batch_size, list) else (self.batch_size,)

    @property
    def sequence_lengths(self) -> tuple[int | None, ...]:
        """Sequence lengths to time; the first is the result's own. None = the dataset's."""
        values = self.sequence_length
        return tuple(values) if isinstance(values, list) else (values,)

    @property
    def torch_device(self) -> torch.device:
        """The device that `device` selects on this machine."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise InvalidSetting("device", self.device, "no CUDA device here; use auto or cpu, or a machine with a GPU")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    @property
    def protocol(self) -> dict[str, Any]:
        """The timing protocol as fields of the result, with only the modes and variants that this device can run."""
        on_cpu = self.torch_device.type == "cpu"
        return {
            "repeats": self.repeats,
            "samples_per_repeat": self.samples,
            "warmup_rounds": self.warmup,
            "modes_autotuned": [
                mode for mode in EXECUTION_MODES if mode in self.execution_modes and (mode == "eager" or not on_cpu)
            ],
            "variants_autotuned": [
                name for name in VARIANTS if name in self.variants and not (on_cpu and name in BACKENDS)
            ],
            "autotune_seconds": float(self.autotune_seconds),
        }

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype that `dtype` selects on `torch_device`."""
        if self.dtype == "auto":
            return torch.float16 if self.torch_device.type == "cuda" else torch.float32
        return DTYPES[self.dtype]
