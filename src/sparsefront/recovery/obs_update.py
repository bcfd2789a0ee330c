"""SparseGPT's closed-form update of the surviving weights, layer by layer, without training."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.networks import first_non_finite, layer_weight
from sparsefront.obs.sweep import (
    Damping,
    Given,
    InBlocks,
    InWindows,
    Selection,
    damp_hessian,
    input_hessian,
    inverse_factor,
    sweep,
)
from sparsefront.options import options_where
from sparsefront.progress import working_time
from sparsefront.pruning.block_by_block import chain_of_blocks
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup, Round, RoundRecord, retake_batch_norm
from sparsefront.settings_class import Batches, settings_class
from sparsefront.tasks.base import Batch


class LayerUpdate(Recovery):
    """Updates the dense weights of one layer after another, in call order, from sums over their inputs.

    Attributes:
        batches, sequential, batch_norm_batches: see `ObsUpdate`.
    """

    batches: int
    sequential: bool
    batch_norm_batches: int | None

    needs: ClassVar[tuple[str, ...]] = ("dense_net",)
    starts_dense: ClassVar[bool] = True
    several_rounds: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    @property
    def moves_masks(self) -> str | None:
        """The setting that lets it choose which weights to keep; None: the masks stay."""
        return None

    def check(self, setup: RecoverySetup) -> None:
        importance = setup.pruning.importance
        if importance.accumulates:
            raise InvalidSetting(
                "importance", importance.name, f"comes from training, and recovery={self.name} trains nothing"
            )
        pattern = setup.pruning.pattern
        if self.moves_masks is not None and not pattern.single_weights:
            single = ", ".join(options_where("sparsefront.patterns", lambda other: other.single_weights))
            raise InvalidSetting(
                f"recovery.{self.moves_masks}",
                getattr(self, self.moves_masks),
                f"pattern {pattern.name}, as it is set, binds weights to each other; those of {single} can be chosen "
                "one by one",
            )

    def recover(self, round: Round) -> RoundRecord:
        start = working_time()
        layers, device = list(round.masks), torch.device(round.setup.trainer.device)
        one_block = self.sequential and chain_of_blocks(round.net, layers)
        round.net.to("cpu" if one_block else device)
        task = round.make_task(None)
        calibration = NetworkCalibration(task, layers, round.data.train_dataloader, device=device)
        batches = list(calibration.batches(self.batches))
        masks: LayerMasks = {}
        for hessians in self._hessians(calibration, layers, batches):
            for layer in list(hessians):
                made = self._update(round, layer, hessians.pop(layer))
                masks[layer] = made.cpu() if one_block else made
        round.masked.set({layer: masks[layer] for layer in layers})
        retake_batch_norm(round, self.batch_norm_batches)
        return RoundRecord(seconds=working_time() - start)

    def _hessians(
        self, calibration: NetworkCalibration, layers: list[str], batches: list[Batch]
    ) -> Iterator[dict[str, Tensor]]:
        """Layer -> [K, K], for the layers that can be updated at once; for the next ones after those."""
        if self.sequential:
            return calibration.totals_in_order(batches, input_hessian)
        return iter([calibration.total(calibration.sums_over(layers, batches, input_hessian))])

    @abstractmethod
    def _update(self, round: Round, layer: str, hessian: Tensor) -> Tensor:
        """Update one layer in place; returns its mask, bool [N, K].

        Args:
            hessian: `input_hessian` of the layer's inputs on all ranks.
        """

    def _selection(self, round: Round, layer: str, mask: Tensor, order: Tensor) -> Selection:
        """Select as many weights of a layer, or of its windows, as the mask, bool [N, K] in the network's order, keeps.

        Args:
            order: int64 [K]: of the inputs, in which windows are contiguous.
        """
        pruning = round.setup.pruning
        previous = round.masked.masks().get(layer) if pruning.schedule.masks_nest else None
        allowed = torch.ones_like(mask) if previous is None else as_matrix(previous).to(mask.device)[:, order]
        final = round.spec.sparsity_of(layer, pruning.sparsity)
        window = round.spec.pattern_of(layer, pruning.pattern).window((mask.shape[0], mask.shape[1]), final)
        if window is None:
            return InBlocks(int(mask.sum()), allowed)
        # Earlier rounds of an iterative schedule keep more than the final window, and some windows one more than others.
        return InWindows(mask[:, order].unflatten(1, (-1, window.m)).sum(dim=2), window.m, allowed)


@settings_class()
class ObsUpdate(LayerUpdate):
    """Settings of `recovery=obs_update`: SparseGPT's update (Frantar and Alistarh, "SparseGPT: Massive Language Models Can
    Be Accurately Pruned in One-Shot", 2023, algorithm 1). Layer by layer, in call order, a few batches of training data give
    the Hessian of the layer's squared output error; one sweep over the weight's columns zeroes pruned weights and updates the
    weights to their right. Biases do not change.

    Args:
        batches: calibration batches of training data, kept in memory throughout.
        damping: added to the Hessian's diagonal, as a fraction of its mean.
        block: columns per sweep block, after which the rest of the matrix is updated; with `reselect` of single weights also
            the columns among which the sweep chooses.
        reselect: let the sweep choose which weights to prune, by their cost after the weights to their left are pruned; the
            masks give the count per layer (or window). false: keep the masks, whatever their importance.
        sequential: compute a layer's inputs with the already updated layers before it; false: with the unpruned network,
            for all layers at once (each Hessian is [K, K] in fp32). Causal language models run block by block, with only
            one block on the device.
        batch_norm_batches: as in `recovery=none`.
    """

    batches: Batches = 16
    damping: Damping = 0.01
    block: PositiveInt = 128
    reselect: bool = False
    sequential: bool = True
    batch_norm_batches: Batches | None = 100

    name: ClassVar[str] = "obs_update"

    @property
    def moves_masks(self) -> str | None:
        return "reselect" if self.reselect else None

    @torch.no_grad()
    def _update(self, round: Round, layer: str, hessian: Tensor) -> Tensor:
        """Prune and update one layer in place; returns its mask, bool [N, K].

        Raises:
            InvalidSetting: the Hessian is not invertible or the update is not finite; names the layer.
        """
        weight = layer_weight(round.net.get_submodule(layer))
        mask = as_matrix(round.masks[layer]).to(weight.device)
        if bool(mask.all()):
            return mask
        # In permuted order, so that windows are contiguous; rows are independent in a sweep.
        inputs = round.spec.permutation(layer).inputs if self.reselect else None
        order = torch.arange(mask.shape[1]) if inputs is None else inputs
        order = order.to(weight.device)
        try:
            hessian, dead = damp_hessian(hessian[order][:, order], self.damping, layer)
            factor = inverse_factor(hessian, layer)
        except ValueError as error:
            raise InvalidSetting("recovery.damping", self.damping, str(error)) from error
        selection = self._selection(round, layer, mask, order) if self.reselect else Given(mask[:, order])
        updated, new_mask = sweep(as_matrix(weight).float()[:, order], factor, selection, dead=dead, block=self.block)
        non_finite = first_non_finite({layer: updated})
        if non_finite is not None:
            too_large = f"the update of {layer} is not finite, {non_finite.counts} values; raise it"
            raise InvalidSetting("recovery.damping", self.damping, too_large)
        back = torch.argsort(order)
        # Every rank has the same Hessian; broadcast so that they also continue with identical bits.
        weight.copy_(like_weight(distributed.broadcast(updated[:, back]), weight))
        return new_mask[:, back]
