"""Masks of a whole network.

A schedule whose masks do not nest: every one is made by all steps of the pattern, to its own sparsity.
"""

import pytest
import torch
from torn_blocks import TornBlocks

from sparsefront.allocation.erk import Erk
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks


def importance(*shapes: tuple[int, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer{i}": torch.rand(*shape, generator=generator) for i, shape in enumerate(shapes)}


def test_wrong_layer_is_named():
    scores = importance((8, 16), (6, 16))
    with pytest.raises(ValueError, match="layer1.*outputs 6 are not a multiple of granularity 4"):
        make_masks(scores, VectorWise(granularity=4), PerLayer(), 0.5)
    scores["layer1"][0, 0] = float("nan")
    with pytest.raises(ValueError, match="layer1.*1 NaN"):
        make_masks(scores, ElementWise(), GlobalThreshold(), 0.5)
    with pytest.raises(ValueError, match=r"layer0.*\[2, 2, 2\]"):
        make_masks({"layer0": torch.ones(2, 2, 2)}, ElementWise(), PerLayer(), 0.5)


def test_previous_masks_bind():
    previous = {"conv": torch.tensor([[[[True, False, False, True]]]])}
    masks = make_masks({"conv": torch.tensor([[1.0, 9, 9, 2]])}, ElementWise(), PerLayer(), 0.75, previous=previous)
    assert masks["conv"].tolist() == [[False, False, False, True]]
    previous = {"conv": torch.tensor([[[[True, False]], [[True, True]]]])}  # 2 channels, 2 taps
    masks = make_masks({"conv": torch.tensor([[1.0, 2, 9, 3]])}, ElementWise(), PerLayer(), 0.5, previous=previous)
    assert masks["conv"].tolist() == [[False, True, False, True]]


@pytest.mark.gpu
def test_masks_on_a_gpu():
    scores = {layer: values.round(decimals=2) for layer, values in importance((64, 128), (96, 256)).items()}
    torch.use_deterministic_algorithms(True)
    try:
        for pattern in (ElementWise(), NM(), VectorWise(granularity=16), TileWise(granularity=16, **SOURCES)):
            on_gpu = make_masks({k: v.cuda() for k, v in scores.items()}, pattern, GlobalThreshold(), 0.75)
            assert all(mask.is_cuda for mask in on_gpu.values())
            if not pattern.uses_granularity:
                on_cpu = make_masks(scores, pattern, GlobalThreshold(), 0.75)
                assert all(torch.equal(on_gpu[layer].cpu(), on_cpu[layer]) for layer in scores)
    finally:
        torch.use_deterministic_algorithms(False)


def test_pattern_that_breaks_its_masks():
    with pytest.raises(InvalidSetting, match="pattern=block_wise: has made a mask of layer0 that breaks it: .*block"):
        make_masks(importance((8, 16)), TornBlocks(4), PerLayer(), 0.5)


@pytest.mark.parametrize(
    ("change", "returned"),
    [
        (lambda mask: mask.float(), r"torch\.float32 \[8, 16\]"),
        (lambda mask: mask.T, r"torch\.bool \[16, 8\]"),
        (lambda mask: mask.flatten(), r"torch\.bool \[128\]"),
        (lambda mask: None, "NoneType"),
    ],
)
def test_step_that_makes_no_mask(monkeypatch, change, returned):
    """A pattern of somebody's own whose step returns something else than a mask."""
    kind = type(ElementWise().steps(0.5, (8, 16))[0])
    to_mask = kind.to_mask
    monkeypatch.setattr(kind, "to_mask", lambda self, *given: change(to_mask(self, *given)))
    message = rf"^pattern={kind.__name__}: to_mask returns {returned}, where a mask is bool \[8, 16\], as the weight$"
    for allocation in (PerLayer(), GlobalThreshold()):
        with pytest.raises(InvalidSetting, match=message):
            make_masks(importance((8, 16)), ElementWise(), allocation, 0.5)


@pytest.mark.parametrize("pattern", [ElementWise(), VectorWise(4), TileWise(8, **SOURCES), TileWise(8)], ids=str)
@pytest.mark.parametrize("allocation", [PerLayer(), GlobalThreshold(), Erk()], ids=lambda a: a.name)
def test_mask_made_anew(pattern, allocation):
    scores = importance((32, 64), (64, 32))
    before = make_masks(scores, pattern, allocation, 0.3)
    anew = make_masks(scores, pattern, allocation, 0.6, final_sparsity=0.75, previous=before, nested=False)
    kept = sum(int(mask.sum()) for mask in anew.values()) / sum(mask.numel() for mask in anew.values())
    assert kept == pytest.approx(0.4, abs=0.1 if pattern == TileWise(8) else 0.02)
    if not isinstance(allocation, Erk):  # its shares are those of the final sparsity
        direct = make_masks(scores, pattern, allocation, 0.6)
        assert all(torch.equal(anew[layer], direct[layer]) for layer in scores)
