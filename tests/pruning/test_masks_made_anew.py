"""A schedule whose masks do not nest: every one is made by all steps of the pattern, to its own sparsity."""

import pytest
import torch
from torch import nn

import sparsefront as sf
from sparsefront.allocation.erk import Erk
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.config.validate import validate
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks
from sparsefront.schedule.iterative import Iterative
from sparsefront.stages.keys import stage_keys

STAGES = [0.4375, 0.5775, 0.75]  # 25, 35 and 50 % of the outputs, and of the inputs of each tile


def importance(*shapes: tuple[int, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer{i}": torch.rand(*shape, generator=generator) for i, shape in enumerate(shapes)}


def pruned_outputs(mask: torch.Tensor) -> float:
    return 1 - mask.any(dim=1).double().mean().item()


@pytest.mark.parametrize(("total", "per_dimension"), zip(STAGES, (0.25, 0.35, 0.5), strict=True))
def test_each_stage_of_tile_wise_takes_outputs_and_inputs(total, per_dimension):
    """The authors' list is per dimension; nested masks take outputs alone until half of them are gone."""
    scores, pattern = importance((200, 400)), TileWise(20, **SOURCES)
    anew = make_masks(scores, pattern, GlobalThreshold(), total, final_sparsity=0.75, nested=False)["layer0"]
    assert pruned_outputs(anew) == pytest.approx(per_dimension, abs=0.006)
    left = anew[anew.any(dim=1)]
    assert 1 - left.double().mean().item() == pytest.approx(per_dimension, abs=0.006)
    nested = make_masks(scores, pattern, GlobalThreshold(), total, final_sparsity=0.75)["layer0"]
    assert pruned_outputs(nested) == pytest.approx(min(total, 0.5), abs=0.006)


@pytest.mark.parametrize("pattern", [ElementWise(), VectorWise(4), TileWise(8, **SOURCES), TileWise(8)], ids=str)
@pytest.mark.parametrize("allocation", [PerLayer(), GlobalThreshold(), Erk()], ids=lambda a: a.name)
def test_a_mask_made_anew_is_the_direct_one(pattern, allocation):
    scores = importance((32, 64), (64, 32))
    before = make_masks(scores, pattern, allocation, 0.3)
    anew = make_masks(scores, pattern, allocation, 0.6, final_sparsity=0.75, previous=before, nested=False)
    kept = sum(int(mask.sum()) for mask in anew.values()) / sum(mask.numel() for mask in anew.values())
    assert kept == pytest.approx(0.4, abs=0.1 if pattern == TileWise(8) else 0.02)
    if not isinstance(allocation, Erk):  # its shares are those of the final sparsity
        direct = make_masks(scores, pattern, allocation, 0.6)
        assert all(torch.equal(anew[layer], direct[layer]) for layer in scores)


def test_what_was_pruned_comes_back_where_it_is_worth_more():
    scores = importance((8, 16))
    before = {"layer0": scores["layer0"] < 0.5}
    anew = make_masks(scores, ElementWise(), PerLayer(), 0.75, previous=before, nested=False)["layer0"]
    assert (anew & ~before["layer0"]).any()
    nested = make_masks(scores, ElementWise(), PerLayer(), 0.75, previous=before)["layer0"]
    assert not (nested & ~before["layer0"]).any()


def test_rounds_of_tile_wise_end_in_a_mask_of_its_structure():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    batches = [(torch.randn(32, 16), torch.randint(4, (32,))) for _ in range(4)]
    pattern = TileWise(16, **SOURCES)
    schedule = Iterative(levels=STAGES, nested=False)
    masks = sf.prune(net, pattern, 0.75, schedule=schedule, layers=["0", "2"], tell=len)
    assert masks.sparsity == pytest.approx(STAGES[0], abs=0.02)
    assert all((~mask).any(dim=1).all() for mask in masks.values()), "the first stage takes inputs too"
    after = sf.recover(net, masks, batches, nn.functional.cross_entropy, epochs=3, lr=1e-2)
    assert [record.sparsity for record in after.rounds] == STAGES and after.sparsity == pytest.approx(0.75, abs=0.02)
    for name, mask in after.items():
        pattern.check(mask, 0.75)
        assert not net.get_submodule(name).weight[~mask].any()


@pytest.mark.parametrize("pattern", ["n_m", "block_2_4"])
def test_patterns_of_some_sparsities_alone_nest(pattern, composed):
    changes = [f"pattern={pattern}", "schedule=iterative", "schedule.nested=false"]
    with pytest.raises(sf.InvalidSetting, match=rf"schedule\.nested=False: is true with pattern {pattern}"):
        validate(composed(*changes))
    schedule = Iterative(nested=False)
    with pytest.raises(sf.InvalidSetting, match=r"schedule\.nested=False"):
        sf.prune(nn.Linear(64, 64), pattern, 0.75, schedule=schedule, layers=[""], tell=len)


def test_the_first_masks_depend_on_it(composed):
    way = ["schedule=iterative", "trainer=cpu", "measure.device=cpu"]
    nested, anew = (stage_keys(validate(composed(*way, *more))) for more in ([], ["schedule.nested=false"]))
    assert nested.prune != anew.prune and nested.dense == anew.dense
