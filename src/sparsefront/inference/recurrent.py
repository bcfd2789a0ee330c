"""Choose the fastest implementation of an LSTM: nn.LSTM's operator, sparse products, or fused sparse steps."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from sparsefront_kernels.recurrent import STEP, SparseGates, step_unsupported_reason
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.export.packed_layers import PackedWeights
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.inference.network_modules import replace_module
from sparsefront.inference.swap_report import LayerSwap
from sparsefront.measure.correctness import NETWORK_ERROR_LIMIT, output_error
from sparsefront.measure.memory import count_bytes
from sparsefront.measure.problems import LayerInput
from sparsefront.measure.search_time import LAYER, time_work, too_late
from sparsefront.measure.speedup import DENSE_LINEAR
from sparsefront.measure.timers import time_layer
from sparsefront.models.recurrent import SplitLSTM

OPERATOR, PRODUCTS, STEPS = "nn.LSTM", "its products", STEP.name
Parts = dict[str, nn.Module]  # a Linear of an LSTM, by its name in the LSTM -> its replacement


def swap_lstms(
    net: nn.Module,
    export: PackedWeights,
    masked: Mapping[str, nn.Module],
    problems: Mapping[str, LayerInput],
    choice: KernelChoice,
    plan: FusionPlan | None,
    layers: dict[str, LayerSwap],
    dense_layers: dict[str, str],
) -> None:
    """Choose implementations of whole LSTMs, after their layers were swapped.

    On a GPU an LSTM whose state products are all pruned is timed with its swapped layers, with fused steps if supported, and
    as nn.LSTM's operator if dense is allowed; the fastest is kept.

    Args:
        masked: pruned layers before the swap.
        layers, dense_layers: of the report; updated in place.
    """
    for name, lstm in list(net.named_modules()):
        if type(lstm) is not SplitLSTM:
            continue
        pruned_lstm = _Lstm(name, lstm, export, masked)
        if pruned_lstm.layers and not choice.swaps_nothing:
            pruned_lstm.swap(net, problems, choice, plan, layers, dense_layers)


@dataclass(frozen=True)
class _Lstm:
    """One LSTM.

    Args:
        name: in the network.
        masked: as in `swap_lstms`.
    """

    name: str
    lstm: SplitLSTM
    export: PackedWeights
    masked: Mapping[str, nn.Module]

    @property
    def layers(self) -> list[str]:
        """Its pruned layers, by their names in the LSTM; empty if a state product is not pruned."""
        pruned = [own for own, _ in self.lstm.named_children() if self._is_pruned(own)]
        return pruned if all(f"hh{suffix}" in pruned for suffix in self.lstm.suffixes) else []

    def _is_pruned(self, own: str) -> bool:
        record = self.export.manifest.layers.get(self._full_name(own))
        return record is not None and record.family != "dense" and record.density < 1

    def _full_name(self, own: str) -> str:
        return f"{self.name}.{own}".removeprefix(".")

    def swap(
        self,
        net: nn.Module,
        problems: Mapping[str, LayerInput],
        choice: KernelChoice,
        plan: FusionPlan | None,
        layers: dict[str, LayerSwap],
        dense_layers: dict[str, str],
    ) -> None:
        states = [f"hh{suffix}" for suffix in self.lstm.suffixes]
        weight = self.masked[self._full_name(states[0])].weight
        assert isinstance(weight, Tensor)
        if plan is not None:
            if all(plan.layers.get(self._full_name(own)) == STEPS for own in states):
                self._replace_parts(net, self._steps(states, weight))
                self._record(states, layers, dense_layers, {}, None)
            return
        received = problems.get(self._full_name("ih_l0"))
        if not _can_be_timed(weight) or received is None or too_late(self.name, LAYER) is not None:
            return
        forms: dict[str, Parts] = {PRODUCTS: {}}
        if choice.dense_allowed:
            forms[OPERATOR] = {own: self.masked[self._full_name(own)] for own in self.layers}
        reason = step_unsupported_reason(self.lstm.hidden_size, weight.dtype, weight.device)
        family = self.export.manifest.layers[self._full_name(states[0])].family
        if not choice.wants(replace(STEP, family=family), "row_major", family, weight.device):
            reason = f"kernel={choice.name or choice.family or choice.mode} takes others"
        if reason is None:
            forms[STEPS] = self._steps(states, weight)
        x = torch.randn(received.input_shape, device=weight.device).to(weight.dtype)
        with time_work(LAYER):
            times, error, wrong = self._time_forms(forms, x)
        reason = wrong.get(STEPS, reason)
        if reason is not None:
            for own in states:
                layers[self._full_name(own)].unsupported[STEPS] = reason
        fastest = min(times, key=times.__getitem__, default=PRODUCTS)
        text = ", ".join(f"{form} {us:.1f} us" for form, us in times.items())
        if fastest == STEPS:
            self._replace_parts(net, forms[STEPS])
            self._record(states, layers, dense_layers, {STEPS: f"the whole LSTM: {text}"}, error)
        elif fastest == OPERATOR:
            self._replace_parts(net, forms[OPERATOR])
            for own in self.layers:
                name = self._full_name(own)
                layers[name] = layers[name].as_dense(DENSE_LINEAR, count_bytes(forms[OPERATOR][own]))
                dense_layers[name] = f"the whole LSTM is faster dense: {text}"

    def _steps(self, states: list[str], weight: Tensor) -> Parts:
        return {
            own: SparseGates(
                self.export.format(self._full_name(own)).to(device=weight.device, dtype=weight.dtype),
                self.masked[self._full_name(own)].bias,  # type: ignore[arg-type]
            )
            for own in states
        }

    def _time_forms(
        self, forms: Mapping[str, Parts], x: Tensor
    ) -> tuple[dict[str, float], float | None, dict[str, str]]:
        """Form -> microseconds, the error of fused steps, and form -> why it cannot run."""
        times, wrong = {}, {}
        error = None
        with torch.inference_mode():
            expected = self._with_parts(
                {own: self.masked.get(self._full_name(own), part) for own, part in self._parts()}
            )(x)
        for form, parts in forms.items():
            lstm = self._with_parts(parts)
            try:
                if form == STEPS:
                    with torch.inference_mode():
                        error = output_error(lstm(x), expected)
                    if not error <= NETWORK_ERROR_LIMIT[x.dtype]:
                        wrong[form] = f"relative error {error:.1e} against nn.LSTM"
                        continue
                times[form] = time_layer(lstm, x).latency_us
            except Exception as raised:  # a kernel may fail in any way; other forms remain
                wrong[form] = failure_reason(raised)
        return times, error, wrong

    def _parts(self) -> list[tuple[str, nn.Module]]:
        return list(self.lstm.named_children())

    def _with_parts(self, parts: Parts) -> SplitLSTM:
        """A copy of the LSTM with these parts replaced."""
        other = copy.copy(self.lstm)
        other._modules = {**self.lstm._modules, **parts}
        return other

    def _replace_parts(self, net: nn.Module, parts: Parts) -> None:
        for own, part in parts.items():
            replace_module(net, self.lstm.get_submodule(own), part)

    def _record(
        self,
        states: list[str],
        layers: dict[str, LayerSwap],
        dense_layers: dict[str, str],
        notes: dict[str, str],
        error: float | None,
    ) -> None:
        for own in states:
            name, module = self._full_name(own), self.lstm.get_submodule(own)
            assert isinstance(module, SparseLayer)
            dense_layers.pop(name, None)
            layers[name] = replace(
                layers[name],
                kernel=STEPS,
                family=module.format.family,
                weight_bytes=count_bytes(module),
                latency_us=None,
                notes=layers[name].notes | notes,
                launch={},
                relative_error=error,
            )


def _can_be_timed(weight: Tensor) -> bool:
    return weight.is_cuda
