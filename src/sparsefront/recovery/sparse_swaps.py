"""Exchange kept weights for pruned ones where the layer's output comes back closer; train afterwards on request."""

import logging
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import layer_weight
from sparsefront.obs.exchanges import Exchanged, exchange_weights
from sparsefront.obs.sweep import input_hessian
from sparsefront.options import options_where
from sparsefront.progress import counted, working_time
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.pruning.masked_weights import sharing_layers
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup, Round, RoundRecord, retake_batch_norm
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.settings_class import LearningRate, settings_class

log = logging.getLogger(__name__)


@settings_class()
class SparseSwaps(Recovery):
    """Settings of `recovery=sparse_swaps`: the dense weights stay, the masks get better. Layer by layer, in the order in which
    the network calls them, a few batches of training data give the Gram matrix of the layer's inputs, and each row takes the
    best exchange of a kept for a pruned weight until none lowers the squared error of its output (`obs.exchanges`). Rows, and
    windows of n:m, keep their counts. Whatever importance made the masks is where the search starts. Layers that share one
    weight have one mask, for the inputs of all of them; it is searched where the first of them is called.

    Args:
        batches: calibration batches of training data, held in memory while the layers are gone through.
        limit: most exchanges of a row; null = until none helps.
        sequential: a layer's inputs are what it is given by the pruned layers before it; false: by the unpruned ones.
        along: finetune or lr_rewind trains afterwards, on the new masks; none trains nothing, as the source.
        epochs, lr: as of that recovery.
        batch_norm_batches: as of `recovery=none`; with along=none.
    Source: Zimmer et al., "SparseSwaps: Tractable LLM Pruning Mask Refinement at Scale", 2025. Departure: rows of
        element_wise may keep different counts, which the masks decide.
    """

    batches: PositiveInt = 16
    limit: PositiveInt | None = 100
    sequential: bool = True
    along: Literal["none", "finetune", "lr_rewind"] = "none"
    epochs: PositiveInt | None = None
    lr: LearningRate | None = None
    batch_norm_batches: PositiveInt | None = 100

    name: ClassVar[str] = "sparse_swaps"
    needs: ClassVar[tuple[str, ...]] = ("dense_net",)
    starts_dense: ClassVar[bool] = True
    several_rounds: ClassVar[bool] = True

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
        if (training := self.training) is not None:
            training.check(setup)
        elif importance.source == "training":
            raise InvalidSetting(
                "importance", importance.name, "comes from training, and recovery=sparse_swaps trains nothing"
            )

    def recover(self, round: Round) -> RoundRecord:
        start = working_time()
        masks = self._swap(round)
        if (training := self.training) is not None:
            seconds = working_time() - start
            trained = training.recover(replace(round, masks=masks))
            return replace(trained, seconds=trained.seconds + seconds)
        retake_batch_norm(round, self.batch_norm_batches)
        return RoundRecord(seconds=working_time() - start)

    def _swap(self, round: Round) -> LayerMasks:
        """The new masks, which the network already obeys."""
        round.net.to(torch.device(round.setup.trainer.device))
        layers = list(round.masks)
        calibration = NetworkCalibration(round.make_task(None), layers, round.data.train_dataloader)
        batches = list(calibration.batches(self.batches))
        previous = round.masked.masks() if round.setup.pruning.schedule.masks_nest else {}
        sharing = sharing_layers(round.net, layers)
        found: dict[str, Exchanged] = {}
        for group in calibration.order_of_use() if self.sequential else [layers]:
            first = {sharing[layer][0]: None for layer in group if layer not in found}
            seen = [layer for one in first for layer in sharing[one]]
            grams = calibration.total(calibration.sums_over(seen, batches, input_hessian))
            for layer in first:  # outputs of layers that share a weight come closer together
                gram = torch.stack([grams.pop(one) for one in sharing[layer]]).sum(0)
                swapped = self._exchange_in_layer(round, layer, gram, previous.get(layer))
                found |= dict.fromkeys(sharing[layer], swapped)
            round.masked.set({layer: found[layer].mask for layer in seen})
        each = list({id(one): one for one in found.values()}.values())
        before, after = (sum(getattr(one, key) for one in each) for key in ("error_before", "error_after"))
        exchanges = sum(one.exchanges for one in each)
        log.info(
            "sparse_swaps: %s in %s, squared output error %.3g -> %.3g",
            counted(exchanges, "exchange"),
            counted(len(found), "layer"),
            before,
            after,
        )
        return {layer: found[layer].mask for layer in layers}

    def _exchange_in_layer(
        self, round: Round, layer: str, gram: torch.Tensor, previous: torch.Tensor | None
    ) -> Exchanged:
        """Exchange weights of one layer; its mask, bool [N, K], in the network's order.

        Args:
            previous: the mask of the round before, which the new one stays within; None = there is none.
        Raises:
            InvalidSetting: inputs that are not finite; names the layer.
        """
        if not bool(gram.diagonal().isfinite().all()):
            raise InvalidSetting("recovery", self.name, f"the inputs of {layer}, or their squares, are not finite")
        weight = as_matrix(layer_weight(round.net.get_submodule(layer)).detach())
        pattern, permutation = round.setup.pruning.pattern, round.spec.permutation(layer)
        order = permutation.inputs  # windows are neighbors in the order in which the layer obeys its pattern
        order = torch.arange(weight.shape[1]) if order is None else order
        order = order.to(weight.device)
        span = None
        if pattern.exchanges_within == "window":
            final = round.spec.sparsity_of(layer, round.setup.pruning.sparsity)
            window = pattern.window((weight.shape[0], weight.shape[1]), final)
            span = None if window is None else window.m

        def ordered(mask: torch.Tensor) -> torch.Tensor:
            return as_matrix(mask).to(weight.device)[:, order]

        swapped = exchange_weights(
            weight[:, order],
            ordered(round.masks[layer]),
            gram[order][:, order],
            span=span,
            allowed=None if previous is None else ordered(previous),
            limit=self.limit,
        )
        return replace(swapped, mask=swapped.mask[:, torch.argsort(order)])
