"""Weights that make up for what a candidate prunes in their layer, without training."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.masks.weight_view import as_matrix
from sparsefront.obs.blockwise import sweep
from sparsefront.obs.hessian import damped_hessian, inverse_factor
from sparsefront.obs.selection import Given

DAMPING = 0.01  # as `recovery=obs_update` has it

Hessians = Callable[[], Mapping[str, Tensor]]
"""Layer -> `obs.hessian.input_hessian` of its inputs in the dense network; asked once."""


class UpdatedWeights:
    """The weights of each layer under each candidate, made when they are asked for and kept on the CPU.

    Every layer is updated as if the others were dense, so that any assignment is put together from what is kept.

    Args:
        net: dense.
        masks: of the candidates.
        hessians: of its layers.
    Source: Frantar and Alistarh, "SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot", 2023, algorithm 1
        for one layer; Sieberling et al., "EvoPress: Accurate Dynamic Model Compression via Evolutionary Search", 2025, for
        networks put together from layers that were updated one by one.
    """

    def __init__(self, net: nn.Module, masks: CandidateMasks, hessians: Hessians) -> None:
        self._net, self._masks, self._open = net, masks, hessians
        self._hessians: Mapping[str, Tensor] | None = None
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}
        self._kept: dict[tuple[str, int, float], Tensor] = {}

    def weight(self, layer: str, pattern: int, sparsity: float) -> Tensor:
        """float32 [N, K] on the CPU, zero where the candidate prunes.

        Raises:
            InvalidSetting: key `update_weights`: the inputs of the layer are not finite, or their Hessian cannot be inverted.
        """
        key = layer, pattern, sparsity
        if key not in self._kept:
            weight = as_matrix(self._net.get_submodule(layer).weight.detach()).float()
            factor, dead = self._factor(layer)
            mask = self._masks.mask(layer, pattern, sparsity).to(weight.device)
            self._kept[key] = sweep(weight, factor, Given(mask), dead=dead)[0].cpu()
        return self._kept[key]

    def _factor(self, layer: str) -> tuple[Tensor, Tensor]:
        """`obs.hessian.inverse_factor` [K, K] and the dead inputs, bool [K]."""
        if layer not in self._factors:
            if self._hessians is None:
                self._hessians = self._open()
            try:
                hessian, dead = damped_hessian(self._hessians[layer], DAMPING, layer)
                self._factors[layer] = inverse_factor(hessian, layer), dead
            except ValueError as error:
                raise InvalidSetting("update_weights", True, f"cannot be done: {error}") from error
        return self._factors[layer]
