"""Text generated token by token, with a static cache of keys and values: one step timed, and the prompt before it apart."""

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

# A network of transformers with its cache.

CACHE = "past_key_values"


class Decoder(nn.Module):
    """A network that predicts the next token, with a static cache: called with a token of each row, it gives logits of the next.

    The token's keys and values are written at `position`, a tensor that stays where it is: a recorded or compiled call is right
    for every position. Calls do not move it, so that a call may be repeated; `advance` does.

    Args:
        net: of transformers, in eval mode; shared, not copied. A rewritten block runs its own code around its products.
        prompt: int64 [B, T], on the network's device: what the cache holds at first.
        cache_length: tokens that it can hold, more than T.
    Attributes:
        first: logits [B, V] of the token behind the prompt.
    Raises:
        InvalidSetting: a network without such a cache, one whose attention sees a window of less than that, a prompt of another
            shape, or a cache that is too short.
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
        """Fill the cache from its start; logits [B, V] of the token behind the prompt.

        Kernels for few rows get it in pieces, as large as they take.
        """
        positions, size = torch.arange(prompt.shape[1], device=prompt.device), prompt.shape[1]
        while True:
            try:
                pieces = zip(prompt.split(size, 1), positions.split(size), strict=True)
                logits = [self._logits(*piece, place * size) for place, piece in enumerate(pieces)][-1]
            except ValueError:  # more rows than a kernel takes
                if size == 1:
                    raise
                size //= 2
            else:
                self.position.fill_(prompt.shape[1])
                return logits

    def advance(self) -> None:
        """Write the next token behind the last one.

        Raises:
            InvalidSetting: the cache is full.
        """
        require_cache(int(self.position) + 1, self.cache_length, key="cache_length")
        self.position += 1

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Token numbers [B, 1] -> logits [B, V] of the next token, and the likeliest [B, 1]."""
        logits = self._logits(input_ids, self.position, self.position[0])
        return logits, logits.argmax(-1, keepdim=True)

    def _logits(self, input_ids: Tensor, positions: Tensor, before: Tensor | int) -> Tensor:
        """Args:
        positions: of these tokens, int64 [T].
        before: tokens before them. Of a number that is on the GPU a network would ask whether it is 0, and wait for it.
        """
        for layer in self.cache.layers:
            layer.positions, layer.before = positions, before
        last = {"logits_to_keep": 1} if "logits_to_keep" in _parameters(self.net) else {}
        output = self.net(input_ids=input_ids, past_key_values=self.cache, use_cache=True, **last)
        return output.logits[:, -1]


class Prefill(nn.Module):
    """The prompt's part of a decoder, as a network by itself: token numbers [B, T] -> logits [B, V]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.decoder._logits(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device), 0)


def require_decoder(net: nn.Module, argument: str = "net") -> None:
    """Raises:
    InvalidSetting: it generates no text from a cache of keys and values.
    """
    config = getattr(net, "config", None)
    if config is None or CACHE not in _parameters(net) or getattr(config, "is_encoder_decoder", False):
        allowed = f"generates no text token by token: mode=decode takes a decoder of transformers, called with {CACHE}"
        raise InvalidSetting(argument, type(net).__name__, allowed)


def _parameters(net: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(net.forward).parameters


def _static_cache(config: Any, length: int) -> Any:
    """Of transformers, with layers that write where they are told and count nothing."""
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
    """transformers is imported where it is needed."""
    from transformers.cache_utils import StaticLayer

    class WrittenAt(StaticLayer):
        """Keys and values [B, heads, length, d], those of a call written at `positions` [T], behind `before` others.

        transformers' own layer counts what it has seen, so that a repeated call runs past its end.
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


# Weights of 8 bits, activations of 16: what a user runs at batch 1.

EXTRA = "torchao"  # of sparsefront: what installs it


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
    """A copy whose Linears, the last one too, have weights in int8 with a scale per output; torchao's.

    PyTorch's compiler keeps its settings: those that torchao would set search minutes for each kernel, in every network.

    Raises:
        InvalidSetting: torchao cannot be used.
    """
    if (why := int8_unavailable_reason()) is not None:
        raise InvalidSetting("dense_low", INT8_WEIGHT_ONLY, why)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    other = copy.deepcopy(net)
    quantize_(other, Int8WeightOnlyConfig(set_inductor_config=False))
    return other


# Steps and prompts, timed.


@dataclass(frozen=True)
class Prefilled:
    """Latency of a prompt, its keys and values written to the cache.

    Args:
        dense, sparse: None where it could not be timed.
        not_timed: "dense" or "sparse" -> why.
    """

    dense: LatencySummary | None = None
    sparse: LatencySummary | None = None
    not_timed: Mapping[str, str] = field(default_factory=dict)


def time_step(
    net: nn.Module, prompt: Tensor, settings: Measure, *, low: Mapping[str, nn.Module] | None = None
) -> DenseTiming:
    """A single-token step of a dense network behind a prompt, in its fastest way; arguments as of `time_steps`."""
    step, inputs = _step(net, prompt, settings)
    return time_alone(step, inputs, settings, low=_steps(low or {}, prompt, settings))


def time_steps(
    dense: nn.Module,
    sparse: nn.Module,
    prompt: Tensor,
    settings: Measure,
    *,
    low: Mapping[str, nn.Module] | None = None,
) -> EndToEnd:
    """Single-token steps of two networks behind a prompt, each in its fastest way, timed in turn.

    Args:
        dense, sparse: in eval mode on the prompt's device.
        prompt: int64 [B, T].
        low: as of `time_pair`.
    Raises:
        as `Decoder` and `time_pair`.
    """
    step, inputs = _step(dense, prompt, settings)
    other, _ = _step(sparse, prompt, settings)
    return time_pair(step, other, inputs, settings, low=_steps(low or {}, prompt, settings))


def _step(net: nn.Module, prompt: Tensor, settings: Measure) -> tuple[Decoder, dict[str, Tensor]]:
    """A decoder behind the prompt, and what it is called with."""
    step = Decoder(net, prompt, settings.cache_length_for(prompt.shape[1])).eval()
    return step, {"input_ids": step.first.argmax(-1, keepdim=True)}


def _steps(nets: Mapping[str, nn.Module], prompt: Tensor, settings: Measure) -> dict[str, nn.Module]:
    return {name: _step(net, prompt, settings)[0] for name, net in nets.items()}


def time_prefill(dense: nn.Module, sparse: nn.Module | None, prompt: Tensor, settings: Measure) -> Prefilled:
    """Latency of the prompt, in the ways of `settings` but max_autotune, which takes minutes on shapes that are timed once."""
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
    except (RuntimeError, ValueError) as error:  # kernels for few rows take no prompt
        alone = time_alone(of_dense, inputs, settings).latency
        return Prefilled(alone, not_timed={"sparse": failure_reason(error)})
    return Prefilled(timed.dense.latency, timed.sparse)
