"""An LSTM or GRU whose gate matrices are Linears, so that each can be pruned and swapped.

`nn.LSTM` keeps all weights as its own parameters and multiplies in one fused operator. `SplitLSTM` calls the same operator
while its Linears are plain, and runs step by step if one of them has hooks or is replaced by a sparse layer, or in a dtype that
the operator would not use; so does `SplitGRU`. `LstmSteps` runs plain Linears for inputs of which a part is known only step by
step.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from sparsefront_kernels.recurrent import lstm_gates, recurrent_operator, recurrent_steps, run_steps, weight_of_steps
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sparsefront.networks import has_forward_hooks

State = tuple[Tensor, ...]  # h and, of an LSTM, c
T = TypeVar("T")


class GateLinear(nn.Linear):
    """The weight [4H, K] of an LSTM's input, forget, cell and output gates, or [3H, K] of a GRU's reset, update and new."""


def unsplit_reason(packed: nn.LSTM | nn.GRU) -> str | None:
    """Why an LSTM or GRU cannot be split, or None."""
    kind = nn.LSTM if isinstance(packed, nn.LSTM) else nn.GRU
    what = f"{'an' if kind is nn.LSTM else 'a'} {kind.__name__}"
    if not all(name in packed._parameters for name in packed._flat_weights_names):
        return f"{what} whose weights are computed from other parameters is not split into Linears"
    if type(packed) is not kind:
        return f"a {type(packed).__name__} may compute something else than nn.{kind.__name__}"
    if packed.proj_size:
        return f"{what} with projections (proj_size={packed.proj_size}) is not split into Linears"
    if has_forward_hooks(packed):
        return f"{what} with forward hooks is not split into Linears"
    return None


class SplitLSTM(nn.Module):
    """A drop-in replacement for `nn.LSTM` with Linears ih_l0, hh_l0, ih_l0_reverse ...

    Also loads state dicts of `nn.LSTM`.

    Args:
        packed: source of parameters and settings; its `unsplit_reason` is None.
    Attributes:
        packed_type: what it replaces.
        operator: of that.
        kind: lstm or gru.
        takes_any_length: whether a program traced from it takes other lengths: its steps are one op. Sequences are not packed.
    """

    packed_type: ClassVar[type[nn.RNNBase]] = nn.LSTM
    operator: ClassVar[Any] = staticmethod(torch.lstm)
    kind: ClassVar[str] = "lstm"
    takes_any_length = False

    def __init__(self, packed: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = packed.input_size, packed.hidden_size, packed.num_layers
        self.bias, self.batch_first, self.dropout = packed.bias, packed.batch_first, float(packed.dropout)
        self.bidirectional, self.proj_size = packed.bidirectional, 0
        for suffix in self.suffixes:
            for part in ("ih", "hh"):
                weight = getattr(packed, f"weight_{part}{suffix}")
                linear = GateLinear(weight.shape[1], weight.shape[0], bias=self.bias, device="meta")
                linear.weight = weight
                if self.bias:
                    linear.bias = getattr(packed, f"bias_{part}{suffix}")
                self.add_module(f"{part}{suffix}", linear)
        self.train(packed.training)

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of its Linears: _l0, _l0_reverse ..."""
        ways = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{way}" for layer in range(self.num_layers) for way in ways]

    @torch._disable_dynamo  # as for nn.LSTM: the compiler would unroll all steps
    def forward(self, input: Tensor | PackedSequence, hx: State | None = None) -> tuple[Tensor | PackedSequence, State]:
        """As nn.LSTM: padded, packed or unbatched sequences."""
        packed = input if isinstance(input, PackedSequence) else None
        x: Tensor = input if packed is None else packed.data
        alone = packed is None and x.dim() == 2
        if alone:
            x = x[None] if self.batch_first else x[:, None]
            hx = None if hx is None else tuple(part[:, None] for part in hx)
        if hx is None:
            batch = x.shape[0 if self.batch_first else 1] if packed is None else int(packed.batch_sizes[0])
            zeros = x.new_zeros(len(self.suffixes), batch, self.hidden_size)
            hx = (zeros, zeros) if self.packed_type is nn.LSTM else (zeros,)
        elif packed is not None and packed.sorted_indices is not None:
            hx = _in_order(hx, packed.sorted_indices)
        run = self._run_fused if self._has_plain_parts and not _casts_otherwise(x) else self._by_steps
        y, *parts = run(x, None if packed is None else packed.batch_sizes, hx)
        state = tuple(parts)
        if packed is not None:
            order = packed.unsorted_indices
            y = PackedSequence(y, packed.batch_sizes, packed.sorted_indices, order)
            return y, state if order is None else _in_order(state, order)
        if alone:
            return y[0] if self.batch_first else y[:, 0], tuple(part[:, 0] for part in state)
        return y, state

    @property
    def is_plain(self) -> bool:
        """Whether it does nothing but multiply by its weights, without hooks."""
        return self._has_plain_parts and "forward" not in vars(self) and not has_forward_hooks(self)

    @property
    def _has_plain_parts(self) -> bool:
        return all(map(is_plain_linear, self.children()))

    def _run_fused(self, x: Tensor, sizes: Tensor | None, hx: State) -> Sequence[Tensor]:
        """Run the operator of nn.LSTM, on a GPU cuDNN's."""
        kinds = ("weight", "bias") if self.bias else ("weight",)
        parts = [[getattr(self, f"{part}{suffix}") for part in ("ih", "hh")] for suffix in self.suffixes]
        weights = [getattr(linear, kind) for pair in parts for kind in kinds for linear in pair]
        apart = weights[0].untyped_storage()._cdata != weights[-1].untyped_storage()._cdata
        if apart and x.is_cuda and not torch.cuda.is_current_stream_capturing():
            self.flatten_parameters()  # a copied network has separate allocations
        if self.takes_any_length:
            shape = self.bias, self.num_layers, self.bidirectional, self.batch_first
            outputs: Sequence[Tensor] = recurrent_operator(x, hx, weights, *shape, self.kind)
            return outputs
        settings = self.bias, self.num_layers, self.dropout, self.training, self.bidirectional
        state = hx if self.packed_type is nn.LSTM else hx[0]
        arguments = (x, state, weights) if sizes is None else (x, sizes, state, weights)
        result: Sequence[Tensor] = self.operator(*arguments, *settings, *([self.batch_first] if sizes is None else []))
        return result

    def _by_steps(self, x: Tensor, sizes: Tensor | None, hx: State) -> Sequence[Tensor]:
        """Run the Linears: products of all inputs at once, those of states step by step."""
        operator: Any = torch
        lengths = real = None
        if sizes is not None:
            x, lengths = operator._VF._pad_packed_sequence(x, sizes, self.batch_first, 0.0, len(sizes))
            real = torch.arange(len(sizes), device=x.device)[:, None] < lengths.to(x.device)  # [T, B]
        states: list[State] = []
        ways = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            places = range(ways * layer, ways * (layer + 1))
            arguments = [(x, real, tuple(part[place] for part in hx), self.suffixes[place]) for place in places]
            outputs = side_by_side([partial(self._direction, *each) for each in arguments], x)
            states += [state for _, state in outputs]
            x = outputs[0][0] if ways == 1 else torch.cat([y for y, _ in outputs], -1)
            if layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        if sizes is not None:
            x, _ = operator._VF._pack_padded_sequence(x, lengths, self.batch_first)
        return x, *(_stack(list(parts)) for parts in zip(*states, strict=True))

    def _direction(self, x: Tensor, real: Tensor | None, state: State, suffix: str) -> tuple[Tensor, State]:
        """One layer in one direction.

        Args:
            x: [T, B, K], or [B, T, K] if batch_first, so that calibration can match it with padding masks.
            real: bool [T, B], False after the end of a sequence, where states stay; None: all sequences have length T.
            state: of [B, H].
        Returns:
            [T, B, H] or [B, T, H], and the final state.
        """
        from_inputs, product = getattr(self, f"ih{suffix}")(x), getattr(self, f"hh{suffix}")
        from_inputs = from_inputs.transpose(0, 1) if self.batch_first else from_inputs
        whole = getattr(product, "step", None)  # a kernel that includes the gates, and takes h [H, B]
        if is_plain_linear(product):  # cast once for all steps
            bias = None if product.bias is None else _cast(product.bias)
            product = partial(F.linear, weight=_cast(product.weight), bias=bias)
        state = state[0].to(from_inputs.dtype), *(_state_of_cells(c, from_inputs) for c in state[1:])
        reverse = suffix.endswith("_reverse")
        if self.takes_any_length:
            weight = weight_of_steps(getattr(self, f"hh{suffix}"))
            y, *parts = recurrent_steps(from_inputs, state, *weight, self.kind, reverse)
            return y.transpose(0, 1) if self.batch_first else y, tuple(parts)
        outputs, state = run_steps(from_inputs, state, product, self.kind, reverse=reverse, real=real, whole=whole)
        return _stack(outputs, 1 if self.batch_first else 0), state

    def flatten_parameters(self) -> None:
        """Compact all weights into one allocation if cuDNN is used, which would otherwise do so at every call."""
        linears = [linear for linear in self.children() if "weight" in linear._parameters]
        if len(linears) < 2 * len(self.suffixes) or not all(linear.weight.is_cuda for linear in linears):
            return
        # Let a temporary nn.LSTM do it, with these parameters as its own.
        packed = self.packed_type(
            self.input_size,
            self.hidden_size,
            self.num_layers,
            self.bias,
            bidirectional=self.bidirectional,
            device="meta",
        )
        for suffix in self.suffixes:
            for part in ("ih", "hh"):
                linear = getattr(self, f"{part}{suffix}")
                setattr(packed, f"weight_{part}{suffix}", linear.weight)
                if self.bias:
                    setattr(packed, f"bias_{part}{suffix}", linear.bias)
        with torch.inference_mode(linears[0].weight.is_inference()), torch.no_grad():  # required to write to its memory
            packed.flatten_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SplitLSTM":
        super()._apply(fn, recurse)
        self.flatten_parameters()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for suffix in self.suffixes:
            for part in ("ih", "hh"):
                for kind in ("weight", "bias"):
                    lstm_key = f"{prefix}{kind}_{part}{suffix}"
                    if lstm_key in state_dict:
                        state_dict[f"{prefix}{part}{suffix}.{kind}"] = state_dict.pop(lstm_key)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        layers = f", num_layers={self.num_layers}" if self.num_layers > 1 else ""
        return f"{self.input_size}, {self.hidden_size}{layers}, bidirectional={self.bidirectional}"


class SplitGRU(SplitLSTM):
    """`SplitLSTM` for `nn.GRU`, whose state is h alone and no tuple. No kernel runs its steps: its products may be sparse."""

    packed_type = nn.GRU
    operator = staticmethod(torch.gru)
    kind = "gru"

    @torch._disable_dynamo
    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Tensor | PackedSequence, Any]:
        """As nn.GRU: padded, packed or unbatched sequences."""
        y, (h,) = super().forward(input, None if hx is None else (hx,))
        return y, h


class LstmSteps:
    """The steps of one batch through a plain `SplitLSTM` of one direction, for inputs [x_t, y_t] of which all x_t are known, and
    y_t after step t - 1. For each layer, a step is one product, with the joined weights of input and state, and the gates.

    Args:
        lstm: see `SplitLSTM.is_plain`.
        known: all x_t, [B, T, features]; their products are one.
    """

    def __init__(self, lstm: SplitLSTM, known: Tensor) -> None:
        self._lstm, features = lstm, known.shape[2]
        self._weights: list[Tensor] = []
        self._biases: list[Tensor] = []
        for suffix in lstm.suffixes:
            of_input, of_state = (lstm.get_submodule(f"{part}{suffix}") for part in ("ih", "hh"))
            weight = torch.cat([of_input.weight, of_state.weight], 1)
            bias = of_input.bias + of_state.bias if lstm.bias else weight.new_zeros(len(weight))
            self._weights.append(_cast(weight))
            self._biases.append(_cast(bias))
        of_known, self._weights[0] = self._weights[0].tensor_split([features], dim=1)
        self._from_known = F.linear(known, of_known, self._biases[0]).unbind(1)

    @torch._disable_dynamo  # as for nn.LSTM: the compiler would unroll all steps
    def __call__(self, step: int, later: Tensor, states: Sequence[State]) -> tuple[Tensor, list[State]]:
        """The output of one step and the new states.

        Args:
            later: y_t, [B, other features].
            states: h and c of each layer, [B, H].
        """
        x, new_states = later, []
        for layer, (weight, (h, c)) in enumerate(zip(self._weights, states, strict=True)):
            if layer > 0:
                x = F.dropout(x, self._lstm.dropout, self._lstm.training)
            product = F.linear(torch.cat([x, h], -1), weight)
            from_known = self._from_known[step] if layer == 0 else self._biases[layer].expand_as(product)
            x, c = lstm_gates(from_known, product, _state_of_cells(c, product))
            new_states.append((x, c))
        return x, new_states


def _cast(weight: Tensor) -> Tensor:
    """In the dtype of products, which autocast would cast it to at each of them."""
    kind = weight.device.type
    casts = torch.is_autocast_enabled(kind) and weight.dtype != torch.float64
    return weight.to(torch.get_autocast_dtype(kind)) if casts else weight


def _state_of_cells(c: Tensor, products: Tensor) -> Tensor:
    """c in the dtype of the products, but in fp32 under autocast, since it sums over all steps."""
    return c.float() if torch.is_autocast_enabled(c.device.type) else c.to(products.dtype)


def _casts_otherwise(x: Tensor) -> bool:
    """Whether autocast asks for another dtype than fp16, which is what cuDNN's operator gets under any."""
    kind = x.device.type
    return kind == "cuda" and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != torch.float16


def side_by_side(runs: Sequence[Callable[[], T]], x: Tensor) -> list[T]:
    """Run one or two functions; on a GPU without gradients, the second one runs in its own stream, except in exported programs.

    Args:
        x: their input.
    """
    if len(runs) == 1 or not x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_exporting():
        return [run() for run in runs]
    here, aside = torch.cuda.current_stream(x.device), _second_stream(x.device)
    aside.wait_stream(here)
    results = [runs[0]()]
    with torch.cuda.stream(aside):
        results.append(runs[1]())
    here.wait_stream(aside)  # memory of either stream is only reused after this
    return results


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _stack(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Stack tensors; a single one is not copied."""
    return parts[0].unsqueeze(dim) if len(parts) == 1 else torch.stack(parts, dim)


def _in_order(state: State, order: Tensor) -> State:
    return tuple(part.index_select(1, order) for part in state)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether it only multiplies by its weight, without hooks."""
    multiplies = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    return multiplies and "forward" not in vars(module) and not has_forward_hooks(module)
