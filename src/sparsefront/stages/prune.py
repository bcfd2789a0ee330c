"""Stage prune: make the first masks from scores of the dense weights; a latency search also assigns patterns."""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import EnergyMeter, share_gpu
from sparsefront.measure.memory import measure_sparsity
from sparsefront.networks import load_state, remove_blocks
from sparsefront.progress import PRUNING, counted, track_time
from sparsefront.pruning.block_by_block import chain_of_blocks
from sparsefront.pruning.collapse import has_budget, misses
from sparsefront.pruning.make_masks import LayoutSearch
from sparsefront.pruning.mask_spec import MASKS, MaskSpec, load_masks, save_masks
from sparsefront.pruning.masks import Masks
from sparsefront.pruning.narrow import narrow
from sparsefront.pruning.prune import prune
from sparsefront.pruning.structure import Removal, record_removal
from sparsefront.stages.keys import StageKeys, reseed, stage_seed
from sparsefront.stages.network import device_of, load_net, make_task, open_data
from sparsefront.training.compilation import deterministic_algorithms
from sparsefront.training.resume import WEIGHTS, save_weights

PLAN, SEARCH = "plan.json", "search.json"
UNTOUCHED = "its masks keep every weight"
log = logging.getLogger(__name__)


def run(
    experiment: Experiment,
    store: ArtifactStore,
    keys: StageKeys,
    dense: Artifact,
    make_search: Callable[[Experiment, ArtifactStore, StageKeys, nn.Module], LayoutSearch],
    recover_smaller: Callable[[Artifact], Artifact | None],
) -> Artifact:
    """Write masks.safetensors, plan.json (layers that stay dense and why; joules), the files of `MaskSpec.save`, search.json
    with the result of a latency search, and the weights and training of a smaller network that was recovered before.

    With `structured` the same stage first makes the smaller network, as it would for a run of that pattern alone.

    Args:
        make_search: creates a latency search for a network with the dense weights. Passed instead of imported, because
            it depends on kernels, whose code must not affect masks made without a search.
        recover_smaller: recovers the smaller network from its masks if the experiment asks for it; passed for the same reason.
    """
    smaller = recovered = None
    shrinking = experiment.shrinking
    if shrinking is not None:
        first = replace(keys, prune=keys.structure, structure=None)
        smaller = run(shrinking, store, first, dense, make_search, recover_smaller)
        recovered = recover_smaller(smaller)
    while (pruned := store.get("prune", keys.prune)) is None:
        with store.making("prune", keys.prune) as new, track_time(PRUNING):
            net, device = load_net(experiment, dense.path / WEIGHTS), device_of(experiment)
            if smaller is not None:
                weights = None if recovered is None else load_file(recovered.path / WEIGHTS)
                shrink(net, load_masks(smaller.path / MASKS), MaskSpec.load(smaller.path), weights)
                if recovered is not None:
                    save_weights(net, new.folder / WEIGHTS)
                    shutil.copy(recovered.path / "training.json", new.folder)
            data = open_data(experiment, seed=stage_seed(experiment.seed, "prune, order"))
            prunable = experiment.model.prunable(net)
            reseed(stage_seed(experiment.seed, "prune"))
            with (
                share_gpu(device),
                EnergyMeter(device) as energy,
                deterministic_algorithms(experiment.trainer.deterministic),
            ):
                by_block = experiment.importance.source == "inputs" and chain_of_blocks(net, prunable)
                net.to("cpu" if by_block else device)
                masks = prune(
                    net,
                    experiment.pattern,
                    experiment.sparsity,
                    importance=experiment.importance,
                    allocation=experiment.allocation,
                    schedule=experiment.schedule,
                    calibration=data.train_dataloader,
                    layers=prunable,
                    ignore=experiment.recipe.find_ignored(prunable),
                    task=make_task(experiment, net),
                    search=None if keys.choice_table is None else make_search(experiment, store, keys, net),
                    device=device,
                    tell=log.info,
                )
            warning = describe_miss(experiment, net, masks, prunable)
            if warning:
                log.warning("%s", warning)  # immediately: the following steps may train for hours
            save_masks(masks, new.folder / MASKS)
            masks.spec.save(new.folder)
            plan = {"dense_layers": masks.ignored, **energy.fields()}
            (new.folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
            if masks.search is not None:
                (new.folder / SEARCH).write_text(json.dumps(masks.search.to_json(), indent=2), encoding="utf-8")
    return pruned


def shrink(
    net: nn.Module, masks: Mapping[str, Tensor], spec: MaskSpec, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Take out of a dense network what the masks of depth or width prune, in place.

    Args:
        weights: recovered under these masks; None = the network's own.
    """
    if spec.blocks is not None:
        remove_blocks(net, spec.blocks)
        record_removal(net, Removal(blocks=spec.blocks))
    if weights is not None:
        load_state(net, weights)
    if spec.blocks is None:
        log.info("prune: %s narrower", counted(len(narrow(net, masks).layers), "layer"))


def describe_miss(experiment: Experiment, net: nn.Module, masks: Masks, prunable: Sequence[str]) -> str | None:
    """One line if the network will miss the requested sparsity, with the reason why most of its dense layers stay dense; None if
    it is close, or if the sparsity is only the ceiling of an allocation with a budget.

    Args:
        masks: the first ones; if the schedule continues from them, layers are assumed to reach their targets.
        prunable: layers whose weights the sparsity refers to.
    """
    if experiment.pattern.takes_blocks:  # rounds to whole blocks, which was reported already
        return None
    target = experiment.sparsity
    if has_budget(experiment.allocation):
        return None
    achieved = measure_sparsity(net, masks, prunable)
    final, verb = achieved.layers, "are"
    if experiment.schedule.sparsity_at(0.0, target) != target:
        final = {name: masks.spec.sparsity_of(name, target) if name in masks else 0.0 for name in prunable}
        verb = "will be"
    pruned_share = sum(achieved.weight_shares[name] * sparsity for name, sparsity in final.items())
    if not misses(pruned_share, target):
        return None
    warning = f"pruning: {pruned_share:.2f} of the weights {verb} gone where sparsity={target:g} was asked for"
    reasons = Counter(masks.ignored.get(name, UNTOUCHED) for name, sparsity in final.items() if sparsity == 0)
    if not reasons:
        return warning
    ((commonest, _),) = reasons.most_common(1)
    return f"{warning}: {reasons.total()} of {len(final)} layers stay dense ({commonest})"


def load_search(pruned: Artifact | None) -> dict[str, Any] | None:
    """The result of a latency search stored in this stage's folder; None if there was none."""
    if pruned is None or not (pruned.path / SEARCH).is_file():
        return None
    search: dict[str, Any] = pruned.read_json(SEARCH)
    return search
