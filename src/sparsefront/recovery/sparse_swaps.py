"""SparseSwaps: refine masks by exchanging kept and pruned weights to reduce each layer's output error."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import in_eval_mode, layer_weight
from sparsefront.obs.sweep import input_hessian
from sparsefront.options import options_where
from sparsefront.progress import counted, working_time
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.pruning.masked_weights import masked, sharing_layers
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup, Round, RoundRecord, retake_batch_norm
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.settings_class import Batches, LearningRate, settings_class
from sparsefront.tasks.base import Batch, Task

log = logging.getLogger(__name__)


@settings_class()
class SparseSwaps(Recovery):
    """Settings of `recovery=sparse_swaps`: keep the dense weights and improve the masks. Layer by layer, in call order, a few
    batches of training data give the Gram matrix of the layer's inputs, and each row applies the best exchange of a kept for
    a pruned weight until none lowers the squared error of its output (`exchange_weights`). Rows, and windows of n:m, keep
    their counts. The search starts from the given masks, whatever their importance. Layers that share a weight share one mask,
    computed for the inputs of all of them when the first is called.

    Args:
        batches: calibration batches of training data, kept in memory throughout.
        limit: maximum number of exchanges per row; null = until none helps.
        sequential: compute a layer's inputs with the pruned layers before it; false: with the unpruned ones.
        held_out: further batches of training data, after those of `batches`. Layers whose exchanges raise the task's loss on
            them keep their given masks, because a lower error of each layer may still be a worse network. BatchNorm uses the
            statistics of each batch there. 0: every exchange is kept, as in the source.
        along: finetune or lr_rewind trains afterwards with the new masks; none trains nothing, as in the source.
        epochs, lr: as in that recovery.
        batch_norm_batches: as in `recovery=none`; used with along=none.
    Source: Zimmer et al., "SparseSwaps: Tractable LLM Pruning Mask Refinement at Scale", 2025. Departure: with
        element_wise, rows may keep different counts, as given by the masks.
    """

    batches: Batches = 16
    limit: PositiveInt | None = 100
    sequential: bool = True
    held_out: NonNegativeInt = 4
    along: Literal["none", "finetune", "lr_rewind"] = "none"
    epochs: PositiveInt | None = None
    lr: LearningRate | None = None
    batch_norm_batches: Batches | None = 100

    name: ClassVar[str] = "sparse_swaps"
    needs: ClassVar[tuple[str, ...]] = ("dense_net",)
    starts_dense: ClassVar[bool] = True
    several_rounds: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.along == "none" and self.epochs is not None:
            raise InvalidSetting("epochs", self.epochs, "must be null with along=none, which trains nothing")
        if self.along != "finetune" and self.lr is not None:
            raise InvalidSetting("lr", self.lr, f"must be null with along={self.along}: it is the rate of finetune")

    @property
    def training(self) -> TrainingRecovery | None:
        if self.along == "none":
            return None
        return Finetune(self.epochs, self.lr) if self.along == "finetune" else LearningRateRewind(self.epochs)

    def check(self, setup: RecoverySetup) -> None:
        pattern, importance = setup.pruning.pattern, setup.pruning.importance
        if pattern.exchanges_within is None:
            swapped = ", ".join(options_where("sparsefront.patterns", lambda other: other.exchanges_within is not None))
            raise InvalidSetting(
                "recovery",
                self.name,
                f"exchanges single weights of a row, which goes with pattern={swapped}, not with {pattern.name} as it is set",
            )
        training = self.training
        if training is not None:
            training.check(setup)
        elif importance.accumulates:
            raise InvalidSetting(
                "importance", importance.name, "comes from training, and recovery=sparse_swaps trains nothing"
            )

    def recover(self, round: Round) -> RoundRecord:
        start = working_time()
        masks = self._swap(round)
        training = self.training
        if training is not None:
            seconds = working_time() - start
            trained = training.recover(replace(round, masks=masks))
            return replace(trained, seconds=trained.seconds + seconds)
        retake_batch_norm(round, self.batch_norm_batches)
        return RoundRecord(seconds=working_time() - start)

    def _swap(self, round: Round) -> LayerMasks:
        """Compute the new masks and apply them to the network."""
        round.net.to(torch.device(round.setup.trainer.device))
        layers = list(round.masks)
        task = round.make_task(None)
        calibration = NetworkCalibration(task, layers, round.data.train_dataloader)
        batches = list(calibration.batches(self.batches + self.held_out * distributed.world_size()))
        batches, held_out = batches[: len(batches) - self.held_out], batches[len(batches) - self.held_out :]
        undecided = dict(round.masks)
        loss, rejected = _measure_loss(task, undecided, held_out), 0
        previous = round.masked.masks() if round.setup.pruning.schedule.masks_nest else {}
        sharing = sharing_layers(round.net, layers)
        by_layer: dict[str, Exchanged] = {}
        for group in calibration.order_of_use() if self.sequential else [layers]:
            first = {sharing[layer][0]: None for layer in group if layer not in by_layer}
            seen = [layer for one in first for layer in sharing[one]]
            dense = {layer: layer_weight(round.net.get_submodule(layer)).detach().clone() for layer in first}
            grams = calibration.total(calibration.sums_over(seen, batches, input_hessian))
            for layer in first:  # layers that share a weight are optimized together
                gram = torch.stack([grams.pop(one) for one in sharing[layer]]).sum(0)
                swapped = self._exchange_in_layer(round, layer, gram, previous.get(layer))
                by_layer |= dict.fromkeys(sharing[layer], swapped)
            round.masked.set({layer: by_layer[layer].mask for layer in seen})
            given_masks = {layer: undecided.pop(layer) for layer in seen}
            exchanged_loss = _measure_loss(task, undecided, held_out)
            if exchanged_loss <= loss:
                loss = exchanged_loss
                continue
            with torch.no_grad():
                for layer, weight in dense.items():
                    layer_weight(round.net.get_submodule(layer)).copy_(weight)
            round.masked.set(given_masks)
            rejected += len(seen)
            by_layer |= {
                layer: Exchanged(as_matrix(mask), 0, by_layer[layer].error_before, by_layer[layer].error_before)
                for layer, mask in given_masks.items()
            }
        if rejected:
            log.info(
                "sparse_swaps: %s would raise the loss on held-out batches and keep their masks",
                counted(rejected, "layer"),
            )
        each = list({id(one): one for one in by_layer.values()}.values())
        before, after = (sum(getattr(one, key) for one in each) for key in ("error_before", "error_after"))
        exchanges = sum(one.exchanges for one in each)
        log.info(
            "sparse_swaps: %s in %s, squared output error %.3g -> %.3g",
            counted(exchanges, "exchange"),
            counted(len(by_layer), "layer"),
            before,
            after,
        )
        return {layer: by_layer[layer].mask for layer in layers}

    def _exchange_in_layer(
        self, round: Round, layer: str, gram: torch.Tensor, previous: torch.Tensor | None
    ) -> "Exchanged":
        """Exchange weights of one layer; returns its mask, bool [N, K], in the network's order.

        Args:
            previous: the previous round's mask, within which the new one stays; None = unrestricted.
        Raises:
            InvalidSetting: inputs are not finite; names the layer.
        """
        if not bool(gram.diagonal().isfinite().all()):
            raise InvalidSetting("recovery", self.name, f"the inputs of {layer}, or their squares, are not finite")
        weight = as_matrix(layer_weight(round.net.get_submodule(layer)).detach())
        pattern, permutation = round.setup.pruning.pattern, round.spec.permutation(layer)
        order = permutation.inputs  # windows are contiguous in permuted order
        order = torch.arange(weight.shape[1]) if order is None else order
        order = order.to(weight.device)
        span = None
        if pattern.exchanges_within == "window":
            final = round.spec.sparsity_of(layer, round.setup.pruning.sparsity)
            window = pattern.window((weight.shape[0], weight.shape[1]), final)
            span = None if window is None else window.m

        def reorder(mask: torch.Tensor) -> torch.Tensor:
            return as_matrix(mask).to(weight.device)[:, order]

        swapped = exchange_weights(
            weight[:, order],
            reorder(round.masks[layer]),
            gram[order][:, order],
            span=span,
            allowed=None if previous is None else reorder(previous),
            limit=self.limit,
        )
        return replace(swapped, mask=swapped.mask[:, torch.argsort(order)])


@torch.no_grad()
def _measure_loss(task: Task, masks: LayerMasks, batches: Sequence[Batch]) -> float:
    """The mean loss of these batches on all ranks while these masks, besides those in the network, are applied; 0 of none."""
    if not batches:
        return 0.0
    norms = [module for module in task.net.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    matrices = {layer: as_matrix(mask) for layer, mask in masks.items()}
    with masked(task.net, matrices), in_eval_mode(task.net):
        for norm in norms:  # batch statistics; running ones do not change
            norm.momentum, norm.training = (
                0.0,
                len(next(value for value in batches[0].values() if isinstance(value, Tensor))) > 1,
            )
        losses = [float(task.loss(task.call(task.net, task.net_inputs(batch)), batch)) for batch in batches]
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    totals = distributed.all_gather(math.fsum(losses) / len(losses))
    return math.fsum(totals) / len(totals)


# Minimum gain relative to a row's output norm, so that rounding cannot exchange two weights back and forth.
SMALLEST_GAIN = 1e-9
# Candidates of each kind that are paired in a long row: few at first, more only if the bound on the others requires it.
CANDIDATES = (64, 512)
# Maximum number of weight pairs in memory at once, 8 bytes each in a few buffers.
PAIRS = 2**24


@dataclass(frozen=True)
class Exchanged:
    """Args:
    mask: bool [N, K], True = keep.
    exchanges: number of exchanges in all rows.
    error_before, error_after: sum of L over the rows.
    """

    mask: Tensor
    exchanges: int
    error_before: float
    error_after: float


@torch.no_grad()
def exchange_weights(
    weight: Tensor,
    mask: Tensor,
    gram: Tensor,
    *,
    span: int | None = None,
    allowed: Tensor | None = None,
    limit: int | None = None,
) -> Exchanged:
    """Exchange weights until no single exchange within a span of a row lowers the error.

    Each row applies its best exchange at a time, in float64. Every span keeps its number of weights.

    Args:
        weight: [N, K], unpruned, any float dtype.
        mask: bool [N, K], the start.
        gram: [K, K], symmetric, positive semidefinite, up to a factor.
        span: neighboring columns within which weights are exchanged; must divide K. None = the whole row.
        allowed: bool [N, K]: weights that may be kept; None = all.
        limit: maximum number of exchanges per row; None = as many as help.
    Source: Zimmer et al., "SparseSwaps: Tractable LLM Pruning Mask Refinement at Scale", 2025, the 1-swap algorithm. The
        bounds that skip most pairs of a long row are ours and do not change the result.
    """
    weight, gram = weight.double(), gram.double()
    mask, pairs = mask.clone(), _Pairs(gram, span)
    addable = torch.ones_like(mask) if allowed is None else allowed
    pruned = weight.masked_fill(mask, 0.0)
    correlation = pruned @ gram  # c of every row, [N, K]
    before = float((pruned * correlation).sum())
    least = SMALLEST_GAIN * (weight.square() @ gram.diagonal())
    active, exchanges, taken = torch.arange(len(weight), device=weight.device), 0, 0
    while len(active) and (limit is None or taken < limit):
        single, square = 2 * weight[active] * correlation[active], weight[active].square() * gram.diagonal()
        prune = (square + single).masked_fill(~mask[active], torch.inf)
        restore = (square - single).masked_fill(mask[active] | ~addable[active], torch.inf)
        change, out, back = pairs.best(weight[active], prune, restore, -least[active])
        better = change < -least[active]
        active, out, back = active[better], out[better], back[better]
        mask[active, out], mask[active, back] = False, True
        correlation[active] += weight[active, out, None] * gram[out] - weight[active, back, None] * gram[back]
        exchanges, taken = exchanges + len(active), taken + 1
    pruned = weight.masked_fill(mask, 0.0)
    return Exchanged(mask, exchanges, before, float((pruned * (pruned @ gram)).sum()))


Exchange = tuple[Tensor, Tensor, Tensor]
"""Per row: change of L, column to prune, column to restore."""


class _Pairs:
    """Finds the best exchange of rows in one layer.

    Args:
        gram, span: see `exchange_weights`.
    """

    def __init__(self, gram: Tensor, span: int | None) -> None:
        self.gram, self.span = gram, span
        size = gram.diagonal().sqrt()
        cosines = (gram / (size[:, None] * size)).nan_to_num(0.0).abs().fill_diagonal_(0.0)
        # |G_pu| <= coherence_p sqrt(G_pp G_uu) for every other u, with a margin for rounding.
        self.coherence = cosines.amax(dim=1).clamp(max=1.0) * (1 + 1e-9)

    def best(self, weight: Tensor, prune: Tensor, restore: Tensor, wanted: Tensor) -> Exchange:
        """The best exchange of each row.

        Args:
            weight: [rows, K].
            prune, restore: [rows, K], the change of L by one weight alone; infinite if not allowed.
            wanted: [rows]; larger changes need not be resolved.
        """
        rows, columns = weight.shape
        span = self.span
        if span is not None and span < columns:
            return _in_parts(
                lambda part: self._in_windows(weight[part], prune[part], restore[part], span), rows, columns * span
            )
        size = weight.abs() * self.gram.diagonal().sqrt()
        bounds = [
            alone
            + other.amin(dim=1, keepdim=True)
            - 2 * self.coherence * size * size.masked_fill(other.isinf(), 0.0).amax(dim=1, keepdim=True)
            for alone, other in ((prune, restore), (restore, prune))
        ]
        most = [max(1, int(alone.isfinite().sum(dim=1).amax())) for alone in (prune, restore)]
        change, out, back = (
            torch.empty(rows, dtype=kind, device=weight.device) for kind in (size.dtype, torch.int64, torch.int64)
        )
        unsure = torch.arange(rows, device=weight.device)
        for level in (*CANDIDATES, columns):
            counts = [min(level, limit) for limit in most]
            outs, backs = (
                bound[unsure].topk(count, dim=1, largest=False).indices.sort(dim=1).values
                for bound, count in zip(bounds, counts, strict=True)
            )

            def among(part: Tensor, rows: Tensor = unsure, outs: Tensor = outs, backs: Tensor = backs) -> Exchange:
                of = rows[part]
                return self._among(weight[of], prune[of], restore[of], outs[part], backs[part])

            change[unsure], out[unsure], back[unsure] = _in_parts(among, len(unsure), counts[0] * counts[1])
            others = torch.stack([_next(bound[unsure], count) for bound, count in zip(bounds, counts, strict=True)])
            unsure = unsure[others.amin(dim=0) < torch.minimum(change, wanted)[unsure]]
            if not len(unsure):
                break
        return change, out, back

    def _in_windows(self, weight: Tensor, prune: Tensor, restore: Tensor, span: int) -> Exchange:
        """The best exchange of each row within a span of columns."""
        rows, columns = weight.shape
        windows = columns // span
        places = torch.arange(columns, device=weight.device).reshape(windows, span)
        shared = self.gram[places[:, :, None], places[:, None, :]]  # [windows, span, span]
        weight, prune, restore = (part.reshape(rows, windows, span) for part in (weight, prune, restore))
        change = prune[..., :, None] + restore[..., None, :] - 2 * weight[..., :, None] * weight[..., None, :] * shared
        best, place = change.flatten(1).min(dim=1)
        start, pair = place // span**2 * span, place % span**2
        return best, start + pair // span, start + pair % span

    def _among(self, weight: Tensor, prune: Tensor, restore: Tensor, outs: Tensor, backs: Tensor) -> Exchange:
        """The best exchange of each row between two lists of columns [rows, count]."""
        shared = self.gram[outs[:, :, None], backs[:, None, :]]
        shared *= 2 * weight.gather(1, outs)[:, :, None] * weight.gather(1, backs)[:, None, :]
        change = prune.gather(1, outs)[:, :, None] + restore.gather(1, backs)[:, None, :] - shared
        best, place = change.flatten(1).min(dim=1)
        out, back = place // backs.shape[1], place % backs.shape[1]
        return best, outs.gather(1, out[:, None])[:, 0], backs.gather(1, back[:, None])[:, 0]


def _in_parts(found, rows: int, pairs: int) -> Exchange:
    """Apply `found` to chunks of rows that fit in memory; `pairs`: weight pairs per row."""
    parts = torch.arange(rows).split(max(1, PAIRS // pairs))
    change, out, back = zip(*(found(part) for part in parts), strict=True)
    return torch.cat(change), torch.cat(out), torch.cat(back)


def _next(bound: Tensor, count: int) -> Tensor:
    """The lowest bound after the `count` lowest, [rows]; infinite if there is none."""
    if count == bound.shape[1]:
        return torch.full_like(bound[:, 0], torch.inf)
    return bound.kthvalue(count + 1, dim=1).values
