"""Masks take one bit a weight on disk, and come back as they were."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sparsefront.pruning.mask_spec import load_masks, mask_shapes, pack, save_masks, unpack


@pytest.mark.parametrize("shape", [(8, 16), (3, 5), (1, 1), (4, 3, 2, 2)], ids=str)
def test_every_shape_comes_back(tmp_path, shape):
    masks = {"fc": torch.rand(shape) < 0.5, "fc.inner": torch.ones(shape, dtype=torch.bool)}
    save_masks(masks, tmp_path / "masks")
    loaded = load_masks(tmp_path / "masks")
    assert mask_shapes(tmp_path / "masks") == {"fc": shape, "fc.inner": shape}
    assert all(torch.equal(loaded[name], mask) for name, mask in masks.items()) and loaded.keys() == masks.keys()


def test_one_bit_a_weight(tmp_path):
    mask = torch.rand(64, 125) < 0.25
    save_masks({"fc": mask}, tmp_path / "masks")
    assert (tmp_path / "masks").stat().st_size < 64 * 125 / 8 + 200
    with safe_open(tmp_path / "masks", framework="np") as stored:
        bits = np.unpackbits(stored.get_tensor("fc"), count=64 * 125, bitorder="little")
    assert (bits.reshape(64, 125) == mask.numpy()).all()
    for shape in ((64, 124), (64, 126)):
        with pytest.raises(ValueError, match=r"a mask of shape \[64, 12[46]\] is not 1000 bytes"):
            unpack(pack(mask), shape)


def test_masks_of_earlier_versions(tmp_path):
    mask = torch.rand(4, 3) < 0.5
    save_file({"fc": mask}, tmp_path / "masks")
    assert torch.equal(load_masks(tmp_path / "masks")["fc"], mask)
    assert mask_shapes(tmp_path / "masks") == {"fc": (4, 3)}
