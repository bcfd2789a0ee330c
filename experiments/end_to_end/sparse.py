"""A pruned network with its kernels: swapped, compared with float32, and in the fastest way that was found for it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels.bench.correctness import products_in
from torch import Tensor, nn

from experiments.end_to_end.dense import Dense
from experiments.end_to_end.networks import Masks, PrunedInMemory, apply_masks, outputs_of
from experiments.harness.measure import Steps
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.product_choice import TimedProducts
from sparsefront.inference.network_modules import release_formats
from sparsefront.inference.precision import IN_16_BITS, Precision
from sparsefront.inference.swap import swap_layers
from sparsefront.inference.swap_report import SwapReport
from sparsefront.inference.whole_network import keep_dense
from sparsefront.measure.correctness import NETWORK_ERROR_LIMIT, output_error, relative_error
from sparsefront.measure.end_to_end import find_execution
from sparsefront.measure.problems import observe_problems
from sparsefront.measure.settings import Measure

WORST_RATIO = 1.5  # of errors, swapped to masked, that is still rounding
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


class WrongOutputs(RuntimeError):
    """The swapped network computes something else than the masked one."""


@dataclass(frozen=True)
class Errors:
    """Relative errors against the masked network in float32, multiplied densely with the same weights.

    Args:
        outputs, dense_outputs: last hidden states of the swapped network and of the masked one in the measured dtype.
        logits, dense_logits: likewise of the logits, which are few numbers.
    """

    outputs: float
    dense_outputs: float
    logits: float
    dense_logits: float

    @property
    def ratio(self) -> float:
        """Of the swapped network's error to that of the masked one."""
        return self.outputs / self.dense_outputs if self.dense_outputs > 0 else math.inf

    @property
    def are_those_of_rounding(self) -> bool:
        """Whether the swapped network is hardly further from the truth than the masked one, in all that they give."""
        return self.ratio <= WORST_RATIO and self.logits <= WORST_RATIO * self.dense_logits


def masked_net(dense: Dense, masks: Masks) -> nn.Module:
    """The dense network with zeros, in the dtype that is measured."""
    return apply_masks(copy.deepcopy(dense.net), masks.layers)


def swapped_net(
    dense: Dense,
    masked: nn.Module,
    masks: Masks,
    choice: KernelChoice,
    timed: TimedProducts | None = None,
    precision: Precision = IN_16_BITS,
) -> tuple[nn.Module, SwapReport]:
    """A network with kernels, as the stages of a run make it, and what was chosen.

    Args:
        timed: times of products that earlier swaps took in this place, to which those of this one are added.
    """
    first = next(masked.parameters())
    problems = observe_problems(masked, dense.inputs, dense.network.prunable)
    net = copy.deepcopy(dense.net)
    export = PrunedInMemory(masked, masks)
    where = {"device": first.device, "dtype": first.dtype, "inputs": dense.inputs}
    report = swap_layers(net, export, problems, choice, **where, timed=timed, precision=precision)
    release_formats(net)
    return net, report


class Reference:
    """A masked network's outputs, and in the wider type what they should be.

    Raises:
        RuntimeError: the device has no memory for the wider network.
    """

    def __init__(self, dense: Dense, masked: nn.Module) -> None:
        self.body, self.inputs, self.dtype = dense.network.body, dense.inputs, next(masked.parameters()).dtype
        self.masked = outputs_of(self.body, masked, self.inputs)
        wide = copy.deepcopy(masked).to(WIDER[self.dtype])
        with products_in("fp32"):
            self.expected = outputs_of(self.body, wide, self._wide_inputs())

    def errors(self, net: nn.Module) -> Errors:
        """Of a network that should compute the same.

        Raises:
            WrongOutputs: it does not.
        """
        actual = outputs_of(self.body, net, self.inputs)
        apart = output_error(list(actual), list(self.masked))
        pairs = zip((actual, self.masked), (self.expected, self.expected), strict=True)
        (outputs, logits), (dense_outputs, dense_logits) = (
            tuple(relative_error(one, other) for one, other in zip(output_parts, expected, strict=True))
            for output_parts, expected in pairs
        )
        errors = Errors(outputs, dense_outputs, logits, dense_logits)
        # logits of random weights may nearly cancel: then rounding alone takes the masked network as far from the truth
        if not apart <= NETWORK_ERROR_LIMIT[self.dtype] and not errors.are_those_of_rounding:
            raise WrongOutputs(f"relative error {apart:.1e} against the masked network: that is no rounding; {errors}")
        return errors

    def _wide_inputs(self) -> dict[str, Tensor]:
        wider = WIDER[self.dtype]
        return {name: value.to(wider) if value.is_floating_point() else value for name, value in self.inputs.items()}


@dataclass(frozen=True)
class Sparse:
    """A swapped network.

    Args:
        call: runs it in its fastest way; None where nothing is timed.
        variant: the name of that way; "dense: ..." where no layer got a sparse kernel and the dense version runs.
    """

    report: SwapReport
    errors: Errors
    call: Callable[[], Any] | None = None
    variant: str = ""


def make_sparse(
    dense: Dense,
    masks: Masks,
    choice: KernelChoice,
    settings: Measure | None,
    steps: Steps,
    timed: TimedProducts | None = None,
) -> Sparse:
    """Mask, swap, compare, and find the fastest way to run it.

    Args:
        settings: which ways are tried; None: nothing will be timed.
        timed: as of `swapped_net`.
    Raises:
        WrongOutputs: the swapped network computes something else.
    """
    with steps("masked"):
        masked = masked_net(dense, masks)
    with steps("swap"):
        net, report = swapped_net(dense, masked, masks, choice, timed)
    with steps("errors"):
        errors = Reference(dense, masked).errors(net)
        del masked
    if settings is None:
        return Sparse(report, errors)
    if (
        report.sparse_flops_share == 0 and choice.dense_allowed
    ):  # what is left is the dense network, zeros among its weights
        return Sparse(report, errors, dense.call, f"dense: {dense.variant}")
    with steps("wrap"):
        execution = find_execution(net, dense.inputs, settings)
    return Sparse(report, errors, execution.fastest.call, execution.name)


def without_kernels(dense: Dense, masks: Masks, sparse: Sparse, why: str) -> Sparse:
    """The dense version, with zeros among its weights, instead of a swapped network that is slower as a whole."""
    errors = Errors(*(2 * [sparse.errors.dense_outputs]), *(2 * [sparse.errors.dense_logits]))
    report = keep_dense(sparse.report, masked_net(dense, masks), why)
    return Sparse(report, errors, dense.call, f"dense: {dense.variant}")
