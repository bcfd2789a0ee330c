"""Latency of text generation with a static KV cache: a step of one token, and the prefill of the prompt."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, failure_reason, first_line
from sparsefront.measure.end_to_end import DenseTiming, EndToEnd, time_alone, time_pair
from sparsefront.measure.settings import INT8_WEIGHT_ONLY, Measure, require_cache
from sparsefront.measure.timers import LatencySummary
from sparsefront.measure.variants import Fuse

CACHE = "past_key_values"


class Decoder(nn.Module):
    """A causal language model with a static KV cache: takes one token per row, returns logits of the next.

    The token's keys and values are written at `position`, a tensor at a fixed address, so that a recorded or compiled call is
    correct for every position. Only `advance` changes it: a call may be repeated.

    Args:
        net: of transformers, in eval mode; shared, not copied. Fused blocks run their own code around their products.
        prompt: int64 [B, T], on the network's device; fills the start of the cache.
        cache_length: capacity of the cache in tokens, more than T.
    Attributes:
        first: logits [B, V] of the token after the prompt.
    Raises:
        InvalidSetting: the network has no such cache or a shorter attention window, the prompt has another shape, or the cache
            is too short.
    """

    position: Tensor

    def __init__(self, net: nn.Module, prompt: Tensor, cache_length: int) -> None:
        super().__init__()
        require_decoder(net)
        if prompt.dim() != 2 or prompt.is_floating_point() or prompt.numel() == 0:
            words = f"{str(prompt.dtype).removeprefix('torch.')} {list(prompt.shape)}"
            raise InvalidSetting("example_inputs", words, "is a prompt: token numbers [batch, tokens]")
        require_cache(prompt.shape[1], cache_length, key="cache_length")
        self.net, self.cache_length = net, cache_length
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64, device=prompt.device), persistent=False)
        self.cache = _static_cache(net.config, cache_length)
        self.first = self.prefill(prompt)

    @torch.no_grad()
    def prefill(self, prompt: Tensor) -> Tensor:
        """Fill the cache from its start; returns logits [B, V] of the token after the prompt."""
        logits = self._logits(prompt, torch.arange(prompt.shape[1], device=prompt.device), 0)
        self.position.fill_(prompt.shape[1])
        return logits

    def advance(self) -> None:
        """Move to the next position.

        Raises:
            InvalidSetting: the cache is full.
        """
        require_cache(int(self.position) + 1, self.cache_length, key="cache_length")
        self.position += 1

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [B, 1] -> logits [B, V] of the next token, and its argmax [B, 1]."""
        logits = self._logits(input_ids, self.position, self.position[0])
        return logits, logits.argmax(-1, keepdim=True)

    def _logits(self, input_ids: Tensor, positions: Tensor, before: Tensor | int) -> Tensor:
        """Logits [B, V] after these tokens.

        Args:
            positions: of these tokens, int64 [T].
            before: number of cached tokens before them; an int for a prompt, since networks test whether it is 0, which would
                synchronize with the GPU for a tensor.
        """
        for layer in self.cache.layers:
            layer.positions, layer.before = positions, before
        last = {"logits_to_keep": 1} if "logits_to_keep" in _parameters(self.net) else {}
        output = self.net(input_ids=input_ids, past_key_values=self.cache, use_cache=True, **last)
        return output.logits[:, -1]


class Prefill(nn.Module):
    """The prefill of a decoder as a module: token ids [B, T] -> logits [B, V]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.decoder._logits(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device), 0)


def require_decoder(net: nn.Module, argument: str = "net") -> None:
    """Raise InvalidSetting for a network that does not generate text with a KV cache."""
    config = getattr(net, "config", None)
    if config is None or CACHE not in _parameters(net) or getattr(config, "is_encoder_decoder", False):
        allowed = f"generates no text token by token: mode=decode takes a decoder of transformers, called with {CACHE}"
        raise InvalidSetting(argument, type(net).__name__, allowed)


def _parameters(net: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(net.forward).parameters


def _static_cache(config: Any, length: int) -> Any:
    """A StaticCache of transformers whose layers write at given positions instead of counting tokens."""
    from transformers import StaticCache

    made = StaticCache(config=config, max_cache_len=length)
    window = getattr(config.get_text_config(decoder=True), "sliding_window", None)
    if any(getattr(layer, "is_sliding", False) for layer in made.layers) and (window is None or window < length):
        allowed = f"is more than the {window} tokens that the network's attention sees: take a shorter cache"
        raise InvalidSetting("cache_length", length, allowed)
    made.layers = [_layer_class()(length) for _ in made.layers]
    return made


@cache
def _layer_class() -> Any:
    """The layer class, defined in a function so that transformers is imported only when needed."""
    from transformers.cache_utils import StaticLayer

    class WrittenAt(StaticLayer):
        """Keys and values [B, heads, length, d]; a call writes its own at `positions` [T], after `before` cached tokens.

        transformers' own layer counts tokens, so that repeated calls run past its end.
        """

        positions: Tensor
        before: Tensor | int

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            assert self.keys is not None and self.values is not None
            self.keys.index_copy_(2, self.positions, key_states)
            self.values.index_copy_(2, self.positions, value_states)
            return self.keys, self.values

        def get_seq_length(self) -> Any:
            return self.before

    return WrittenAt


EXTRA = "torchao"  # the extra of sparsefront that installs it


def int8_unavailable_reason() -> str | None:
    """Why torchao cannot be used, or None."""
    try:
        import torchao.quantization  # noqa: F401
    except ModuleNotFoundError:
        return f"needs torchao, which is not installed: it comes with sparsefront's extra `{EXTRA}`"
    except Exception as error:  # a build for another PyTorch may fail in any way
        return f"needs torchao, which cannot be imported: {first_line(error)}"
    return None


def int8_weight_only(net: nn.Module) -> nn.Module:
    """A copy whose Linear layers, the LM head too, have torchao's int8 weights with a scale per output channel.

    torchao must not change Inductor's settings: its own would autotune each kernel for minutes, in every network.

    Raises:
        InvalidSetting: torchao cannot be used.
    """
    why = int8_unavailable_reason()
    if why is not None:
        raise InvalidSetting("dense_low", INT8_WEIGHT_ONLY, why)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    other = copy.deepcopy(net)
    quantize_(other, Int8WeightOnlyConfig(set_inductor_config=False))
    return other


@dataclass(frozen=True)
class Prefilled:
    """Latency of a prompt's prefill.

    Args:
        dense, sparse: None where it could not be timed.
        not_timed: "dense" or "sparse" -> why.
    """

    dense: LatencySummary | None = None
    sparse: LatencySummary | None = None
    not_timed: Mapping[str, str] = field(default_factory=dict)


def time_step(
    net: nn.Module,
    prompt: Tensor,
    settings: Measure,
    *,
    fuse: Fuse | None = None,
    low: Mapping[str, nn.Module] | None = None,
) -> DenseTiming:
    """Time a single-token step of a dense network after a prompt, in its fastest execution; arguments as in `time_steps`."""
    step, inputs = _step(net, prompt, settings)
    return time_alone(step, inputs, settings, fuse=fuse, low=_steps(low or {}, prompt, settings))


def time_steps(
    dense: nn.Module,
    sparse: nn.Module,
    prompt: Tensor,
    settings: Measure,
    *,
    fuse: Fuse | None = None,
    low: Mapping[str, nn.Module] | None = None,
) -> EndToEnd:
    """Time single-token steps of two networks after a prompt in turn, each in its fastest execution.

    Args:
        dense, sparse: in eval mode on the prompt's device.
        prompt: int64 [B, T].
        fuse: makes the fused graph of a `Decoder`; as in `time_pair`.
        low: as in `time_pair`.
    Raises:
        as `Decoder` and `time_pair`.
    """
    step, inputs = _step(dense, prompt, settings)
    other, _ = _step(sparse, prompt, settings)
    return time_pair(step, other, inputs, settings, fuse=fuse, low=_steps(low or {}, prompt, settings))


def _step(net: nn.Module, prompt: Tensor, settings: Measure) -> tuple[Decoder, dict[str, Tensor]]:
    """A decoder after the prompt, and its keyword arguments."""
    step = Decoder(net, prompt, settings.cache_length_for(prompt.shape[1])).eval()
    return step, {"input_ids": step.first.argmax(-1, keepdim=True)}


def _steps(nets: Mapping[str, nn.Module], prompt: Tensor, settings: Measure) -> dict[str, nn.Module]:
    return {name: _step(net, prompt, settings)[0] for name, net in nets.items()}


def time_prefill(dense: nn.Module, sparse: nn.Module | None, prompt: Tensor, settings: Measure) -> Prefilled:
    """Time the prefill, without max_autotune, which takes minutes for shapes that are timed once."""
    modes = [mode for mode in settings.execution_modes if not mode.startswith("max_autotune")]
    settings = replace(settings, execution_modes=modes or settings.execution_modes)
    length, inputs = settings.cache_length_for(prompt.shape[1]), {"input_ids": prompt}
    try:
        of_dense = Prefill(Decoder(dense, prompt, length)).eval()
        if sparse is None:
            return Prefilled(time_alone(of_dense, inputs, settings).latency)
    except RuntimeError as error:
        return Prefilled(not_timed={"dense": failure_reason(error)})
    try:
        timed = time_pair(of_dense, Prefill(Decoder(sparse, prompt, length)).eval(), inputs, settings)
    except RuntimeError as error:
        alone = time_alone(of_dense, inputs, settings).latency
        return Prefilled(alone, not_timed={"sparse": failure_reason(error)})
    return Prefilled(timed.dense.latency, timed.sparse)
