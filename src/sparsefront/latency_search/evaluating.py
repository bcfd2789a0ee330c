"""The errors of a table of choices: what every candidate costs one network, product by product."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from sparsefront.allocation.choice_table import ChoiceTable, Item, Option
from sparsefront.latency_search.candidate_masks import CandidateMasks
from sparsefront.latency_search.errors import output_error
from sparsefront.latency_search.weighing import Loss, weighed
from sparsefront.masks.weight_view import as_matrix
from sparsefront.progress import bar
from sparsefront.time_use import working_time


def with_errors(
    times: ChoiceTable, net: nn.Module, masks: CandidateMasks, hessians: Mapping[str, Tensor], loss: Loss
) -> ChoiceTable:
    """The table with the error of every option of this network's layers.

    Args:
        times: see `table.measure_times`; of this network, or of another one of its architecture.
        net: dense; stays as it is.
        masks: of the candidates.
        hessians: layer -> [K, K], see `errors.output_error`.
        loss: of the network with some layers pruned, by which errors are weighed.
    """
    start = working_time()
    layers = dict.fromkeys(layer for item in times.items for layer in item.layers)
    weights = {layer: as_matrix(net.get_submodule(layer).weight.detach()).float() for layer in layers}
    items = [_evaluated(item, weights, masks, hessians) for item in bar(times.items, description="errors", unit="item")]
    items = weighed(items, masks, loss)
    return replace(times, items=items, seconds=times.seconds + working_time() - start)


def _evaluated(
    item: Item, weights: Mapping[str, Tensor], masks: CandidateMasks, hessians: Mapping[str, Tensor]
) -> Item:
    def error(option: Option) -> float:
        if option.pattern is None:
            return 0.0
        return sum(
            output_error(weights[layer], masks.mask(layer, option.pattern, option.sparsity), hessians[layer])
            for layer in item.layers
        )

    return replace(item, options=[replace(option, error=error(option)) for option in item.options])
