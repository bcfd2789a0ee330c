"""Time a dense and a sparse network in turn: `sf.benchmark`."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.measure.correctness import NETWORK_ERROR_LIMIT, floating_tensors
from sparsefront.measure.decode import (
    Prefilled,
    int8_unavailable_reason,
    int8_weight_only,
    require_decoder,
    time_prefill,
    time_steps,
)
from sparsefront.measure.end_to_end import NO_LAYER_IS_SPARSE, EndToEnd, time_pair
from sparsefront.measure.execution_mode import suppress_treespec_warning
from sparsefront.measure.search_time import SearchTime, Tell, searching
from sparsefront.measure.settings import DTYPES, INT8_WEIGHT_ONLY, Measure
from sparsefront.measure.speedup import FEWEST_REPEATS, ratio_apart
from sparsefront.measure.timers import LatencySummary
from sparsefront.measure.variants import Fuse, copy_sharing_weights
from sparsefront.models.unpadded import fit_tokens, is_unpadded, set_lengths, unpad
from sparsefront.networks import restore_on_error, unwrap
from sparsefront.progress import counted
from sparsefront.settings_class import Dtype
from sparsefront.tasks.plain_task import (
    device_of,
    forward_names,
    inputs_in_words,
    name_inputs_on,
    require_callable,
    require_instance,
    require_network,
    translate_errors,
)


def find_dtype(net: nn.Module) -> Dtype:
    """The coarsest dtype of the network's weights, as `Measure.dtype` calls it.

    It sets the allowed error between two executions of the network; embeddings and norms may be float32.

    Raises:
        InvalidSetting: `Measure` does not support that dtype.
    """
    dtypes = {parameter.dtype for parameter in net.parameters() if parameter.is_floating_point()}
    # a SparseLayer's weight is no parameter
    dtypes |= {layer.format.dtype for layer in net.modules() if isinstance(layer, SparseLayer)}
    coarsest = max(dtypes, key=lambda dtype: NETWORK_ERROR_LIMIT.get(dtype, math.inf), default=torch.float32)
    for name, dtype in DTYPES.items():
        if dtype == coarsest:
            return name
    raise InvalidSetting("net", coarsest, f"is timed in {', '.join(DTYPES)}")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two networks timed in turn.

    Args:
        device: cpu, or the name of the GPU.
        timed: all measurements: samples, execution modes tried, and why others were not; with mode=decode of single steps.
        prefill: with mode=decode, the latency of the prompt.
    """

    device: str
    timed: EndToEnd
    prefill: Prefilled | None = None

    @property
    def tokens_per_s(self) -> dict[str, float]:
        """With mode=decode, tokens per second of dense, sparse and, if it was timed, int8_weight_only."""
        if self.prefill is None:
            return {}
        low, batch = self.timed.dense.low, self.timed.dense.batch_size
        taken = {"dense": self.dense_ms} | ({} if low is None else {low.precision: low.latency.median_ms})
        return {name: batch / ms * 1e3 for name, ms in (taken | {"sparse": self.sparse_ms}).items()}

    @property
    def dense_ms(self) -> float:
        """Median latency of the dense network in its fastest execution mode, in milliseconds."""
        return self.timed.dense.latency.median_ms

    @property
    def sparse_ms(self) -> float:
        """Median latency of the sparse network in its fastest execution mode, in milliseconds."""
        return self.timed.sparse.median_ms

    @property
    def speedup(self) -> float:
        """Dense time / sparse time, above 1 = sparse is faster."""
        return self.timed.speedup.speedup

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the speedup, for 5 repeats or more; a win must also exceed timing noise (`results.statistics`)."""
        return self.timed.speedup.speedup_low, self.timed.speedup.speedup_high

    def __str__(self) -> str:
        low, high = self.interval
        repeats = len(self.timed.samples_ms["sparse"])
        few = repeats < FEWEST_REPEATS
        sure = f"n={repeats}: no interval" if few else f"95 % interval {low:.2f} to {high:.2f}"
        if self.timed.left_dense:
            sure = NO_LAYER_IS_SPARSE
        lines = [
            _line("dense", self.timed.dense.latency, self.timed.dense.execution.name),
            _line("sparse", self.timed.sparse, self.timed.execution.name),
            f"speedup {self.speedup:.2f} ({sure}) on {self.device}"
            f"{ratio_apart(self.speedup, self.dense_ms, self.sparse_ms)}",
        ]
        if self.prefill is not None:
            lines.append("tokens/s: " + ", ".join(f"{name} {rate:.0f}" for name, rate in self.tokens_per_s.items()))
            sides = {"dense": self.prefill.dense, "sparse": self.prefill.sparse}
            taken = (f"{name} {one.median_ms:.3f} ms" for name, one in sides.items() if one is not None)
            left_out = (f"{name} not timed, {why}" for name, why in self.prefill.not_timed.items())
            lines.append("prompt: " + ", ".join([*taken, *left_out]))
        if self.device == "cpu":
            lines.append("on a CPU the reference kernels run: this says nothing about a GPU")
        return "\n".join(lines)


def benchmark(
    dense_net: nn.Module,
    net: nn.Module,
    example_inputs: object,
    *,
    settings: Measure | None = None,
    fuse: Fuse | None = make_dense_graph,
    low: Mapping[str, nn.Module] | None = None,
    prompt_net: nn.Module | None = None,
    lengths: Sequence[int] | Tensor | None = None,
    seconds: float | None = None,
    tell: Tell = print,
) -> Comparison:
    """Find the fastest execution mode of each network (eager, CUDA graph, compiled), then time both in turn.

    Args:
        dense_net, net: on the same device, with the same coarsest weight dtype; both are in eval mode afterwards.
        example_inputs: arguments of both, such as (x,), the batch to time; in a dict, values may be non-tensors.
        settings: the timing settings of `sf.Measure`: warmup, samples, repeats, execution modes, variants and seconds of the
            search; device, dtype and sizes come from the networks and inputs. With mode="decode" the input is a prompt,
            `input_ids` [B, T]: single-token steps after it are timed and, separately, its prefill; swap kernels for [B, 1].
        fuse: makes the fused graph of the dense network, one more candidate for its fastest version; None: no such candidate.
        low: low precision -> the dense network in it, a separate baseline, of which the fastest is timed. None: with
            mode="decode" int8_weight_only, as `settings.dense_low` says.
        prompt_net: the sparse network with kernels for prompts, whose prefill is timed; None: that of `net`.
        lengths: as in `sf.swap`. A network that was swapped with them is timed next to a copy of the dense one that computes
            no padding either, on the lengths of the mask if None.
        seconds: budget of both searches: work that is not expected to finish in time is skipped, but not the versions that
            are usually the fastest. None: twice `settings.autotune_seconds`, 60 by default. Results of earlier searches with
            these networks and input shapes, of `sf.swap` or an earlier process too, are reused: a swapped network runs in
            the execution mode that won `sf.swap`'s comparison.
        tell: called with a line of text at the beginning, and at the end: the duration of the searches, and what was skipped.
    Returns:
        latencies with p20 and p80, and the speedup with its interval: `print(comparison)`.
    Raises:
        InvalidSetting: both networks are the same object; or they are on another device than the inputs, differ in dtype or
            output shapes, or return no floating-point tensor.
        RuntimeError: no execution mode can run one of the networks.
    """
    dense_net, net = unwrap(dense_net), unwrap(net)
    require_network(dense_net, argument="dense_net")
    require_network(net)
    if dense_net is net:
        allowed = "is the same object as dense_net: copy.deepcopy one before sf.prune"
        raise InvalidSetting("net", type(net).__name__, allowed)
    require_instance("settings", settings, Measure)
    require_callable("tell", tell, "line", allowed="is a function that takes a line, such as print")
    if fuse is not None:
        require_callable(
            "fuse", fuse, "net", "inputs", allowed="is a function that makes a graph of the dense network, or None"
        )
    inputs = name_inputs_on(dense_net, example_inputs)
    if list(name_inputs_on(net, example_inputs)) != list(inputs):
        own, others = (", ".join(forward_names(one) or ()) for one in (net, dense_net))
        raise InvalidSetting("net", type(net).__name__, f"must name its inputs as dense_net does, {others}, not {own}")
    if lengths is not None:
        inputs = set_lengths(dense_net, inputs, lengths)
    if lengths is not None or is_unpadded(net) or is_unpadded(dense_net):
        dense_net, net = (_without_padding(one, argument) for one, argument in ((dense_net, "dense_net"), (net, "net")))
        tell(f"benchmark: without padding, {fit_tokens(net, inputs)} tokens of {inputs_in_words(inputs)}")
    name, other = find_dtype(dense_net), find_dtype(net)
    if name != other:
        raise InvalidSetting("net", DTYPES[other], f"must be in the dtype of dense_net, {DTYPES[name]}")
    device = device_of(dense_net)
    settings = replace(settings or Measure(), device=device.type, dtype=name)  # type: ignore[arg-type]  # it checks
    search = SearchTime(2 * settings.autotune_seconds if seconds is None else seconds, tell)
    called = step_inputs(dense_net, inputs, settings, "dense_net")
    with restore_on_error(dense_net, net):
        expected = _output_shapes(dense_net, called, "example_inputs", inputs_in_words(inputs), "dense_net")
        actual = _output_shapes(net, called, "net", type(net).__name__, "it")
        if actual != expected:
            raise InvalidSetting("net", actual, f"must give outputs of the shapes of dense_net's, {expected}")
        on = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
        tell(f"benchmark: the fastest execution mode of each network on {on}, {search.limit()}")
        prefill = None
        with searching(search), suppress_treespec_warning():
            decodes = settings.mode == "decode"
            if low is None and decodes:
                low = _int8(dense_net, settings, tell)
            with search.part(PROMPTS_FROM, "steps") if decodes else nullcontext():
                timed = time_networks(dense_net.eval(), net.eval(), inputs, settings, fuse=fuse, low=low or {})
            if decodes:
                with search.part(1.0, "prompt"):
                    prefill = time_prefill(dense_net, prompt_net or net, inputs["input_ids"], settings)
        tell(f"benchmark: {search.summary()}{f'; {NO_LAYER_IS_SPARSE}' if timed.left_dense else ''}")
    return Comparison(on, timed, prefill)


def _without_padding(net: nn.Module, argument: str) -> nn.Module:
    """The network if it computes no padding, or else a copy that computes none and shares its weights."""
    if is_unpadded(net):
        return net
    if any(isinstance(module, SparseLayer) for module in net.modules()):
        allowed = "computes padding, and the other network or lengths asks for none: swap it with sf.swap(lengths=...)"
        raise InvalidSetting(argument, type(net).__name__, allowed)
    return unpad(copy_sharing_weights(net), key=argument, value=type(net).__name__)


PROMPTS_FROM = 0.7  # of the search's time: the part for steps of three networks


def time_networks(
    dense_net: nn.Module,
    net: nn.Module,
    inputs: dict[str, Tensor],
    settings: Measure,
    *,
    fuse: Fuse | None,
    low: Mapping[str, nn.Module],
) -> EndToEnd:
    """`time_pair`; with mode=decode, in steps after the prompt."""
    if settings.mode == "decode":
        return time_steps(dense_net, net, inputs["input_ids"], settings, fuse=fuse, low=low)
    return time_pair(dense_net, net, inputs, settings, fuse=fuse, low=low)


def step_inputs(
    net: nn.Module, inputs: dict[str, Tensor], settings: Measure, argument: str = "net"
) -> dict[str, Tensor]:
    """What one timed forward is called with: with mode=decode one token [B, 1] per row of the prompt."""
    if settings.mode != "decode":
        return inputs
    require_decoder(net, argument)
    if list(inputs) != ["input_ids"] or inputs["input_ids"].dim() != 2:
        allowed = "is a prompt of whole rows with mode=decode: input_ids [batch, tokens] alone"
        raise InvalidSetting("example_inputs", inputs_in_words(inputs), allowed)
    return {"input_ids": inputs["input_ids"][:, :1]}


def _int8(net: nn.Module, settings: Measure, tell: Tell) -> dict[str, nn.Module]:
    """The dense network with int8 weights, if requested; by default on a GPU with torchao installed."""
    requested = device_of(net).type == "cuda" if settings.dense_low is None else bool(settings.dense_low)
    if requested and settings.dense_low is None and (why := int8_unavailable_reason()) is not None:
        tell(f"benchmark: dense in {INT8_WEIGHT_ONLY} is left out: {why}")
        return {}
    return {INT8_WEIGHT_ONLY: int8_weight_only(net)} if requested else {}


def _line(name: str, latency: LatencySummary, execution: str) -> str:
    spread = f"p20 {latency.p20_ms:.3f}, p80 {latency.p80_ms:.3f}, {counted(latency.n, 'sample')}"
    return f"{name:<7} {latency.median_ms:.3f} ms ({spread}), {execution}"


@torch.inference_mode()
def _output_shapes(
    net: nn.Module, inputs: dict[str, Tensor], argument: str, value: str, called: str
) -> list[list[int]]:
    """Shapes of all floating-point tensors that a network returns; an error of the call names `argument`."""
    with translate_errors(argument, value, f"{called} cannot be called with the example inputs"):
        output = net.eval()(**inputs)
    return [list(tensor.shape) for tensor in floating_tensors(output)]
