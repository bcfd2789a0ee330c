"""Pictures of masks as files, in the run's folder and in its page."""

import base64
import re

import numpy as np
import torch
from matplotlib.image import imread

from sparsefront.masks.groups import Boundaries
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.mask_pictures import (
    GAP,
    MARGIN,
    PrunedLayers,
    Scale,
    mask_image,
    write_mask_pictures,
)
from sparsefront.results.run_report import Report, write_report


def pixels_of(path) -> np.ndarray:
    return np.rint(imread(path)[..., :3] * 255).astype(np.uint8)


def random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5


def pruned_layers(**changes) -> PrunedLayers:
    mask = random_mask(16, 8)
    parts = {"masks": {"a.0": mask, "a.1": ~mask, "conv": mask.reshape(16, 2, 2, 2)}, "sparsity": 0.5}
    return PrunedLayers(**(parts | {"pattern": ElementWise(), "pattern_text": "element_wise"} | changes))


def test_a_permuted_layer_is_shown_in_both_orders(tmp_path):
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    permuted = torch.zeros(8, 8, dtype=torch.bool)
    permuted[:4, ::2], permuted[4:, ::3] = True, True  # vectors of 4
    permutation = Permutation(outputs=order)
    mask, pattern = permutation.invert(permuted), VectorWise(granularity=4)
    spec = MaskSpec({"a": permutation})
    pruned = pruned_layers(masks={"a": mask}, pattern=pattern, spec=spec)
    (path,) = write_mask_pictures(pruned, tmp_path, None)
    scale = Scale.of((8, 8))
    left = mask_image(mask, Boundaries(), scale).pixels
    right = mask_image(permuted, pattern.boundaries(permuted, 0.5), scale).pixels
    assert right.shape[0] == left.shape[0] + 1, "one line between two vectors"
    found, top = pixels_of(path), right.shape[0] + MARGIN
    start = MARGIN + left.shape[1] + GAP
    assert (found[-top : -top + left.shape[0], MARGIN : MARGIN + left.shape[1]] == left).all()
    assert (found[-top:-MARGIN, start : start + right.shape[1]] == right).all()


def test_the_page_holds_the_pictures(tmp_path, make_result):
    row = make_result(sparsity_per_layer={"a.0": 0.5, "a.1": 0.5, "conv": 0.5})
    written = write_report(row, tmp_path, Report(plot=False, mask_pictures=True, mask_layers=["conv"]), pruned_layers())
    assert written == [tmp_path / "masks", tmp_path / "report.html"]
    found = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)">', written[1].read_text())
    assert [name for name, _ in found] == ["density", "conv"]
    for name, content in found:
        assert base64.b64decode(content) == (tmp_path / "masks" / f"{name}.png").read_bytes()
