"""channel: whole rows or whole columns."""

import pytest
import torch

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.patterns.channel import Channel
from sparsefront.pruning.make_masks import make_masks


def test_a_channel_kept_in_part_is_named():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2, 5] = False
    with pytest.raises(ValueError, match="output 2 keeps 5 of its 6 weights"):
        Channel("outputs").check(mask, 0.1)
    with pytest.raises(ValueError, match="input 5 keeps 3 of its 4 weights"):
        Channel("inputs").check(mask, 0.1)


def test_every_layer_keeps_its_share_unless_a_network_wide_threshold_is_asked_for():
    importance = {"weak": torch.full((4, 8), 0.1), "strong": torch.ones(4, 8)}
    assert not Channel().ranked_in_source
    masks = make_masks(importance, Channel(), GlobalThreshold(), 0.5)
    assert not masks["weak"].any() and masks["strong"].all()
