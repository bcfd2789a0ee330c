"""Parts of the rewriting that are left out: fewer things are fused, and the outputs stay."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import entry

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import product_choice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import FusionParts
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise


def rewritten(pruned, parts):
    """The products of the first block, after the outputs were compared."""
    inputs = pruned.inputs[0]
    with torch.no_grad():
        expected = pruned.net(**inputs)
        report = fuse_blocks(pruned.net, pruned.formats, pruned.masks, inputs, KernelChoice("auto"), parts=parts)
        assert output_error(pruned.net(**inputs), expected) < 5e-3
    assert not report.unsupported
    return next(iter(report.blocks.values()))


def test_all_parts(bert):
    block = rewritten(bert(TileWise(16), 0.75), FusionParts())
    assert [len(product.layers) for product in block.products] == [3, 1, 1, 1]
    assert block.products[2].activation == "gelu" and block.products[2].vanished_outputs > 0
    assert block.products[1].residual and block.products[3].residual and block.layout == "feature_major"
    assert (block.norms, block.residual_norms) == (2, 0)


@pytest.mark.parametrize("bias_in_product", [True, False])
@pytest.mark.parametrize(
    ("network", "by_norms"), [("bert", [1, 3]), ("vit", [1])]
)  # vit: the next block normalises the other
def test_norms_add_what_kernels_cannot(request, monkeypatch, network, by_norms, bias_in_product):
    pruned = request.getfixturevalue(network)(TileWise(16), 0.75)
    reference = entry("gathered_reference")
    monkeypatch.setattr(product_choice, "labeled", lambda label: (replace(reference, fuses_epilogue=False), None))
    if not bias_in_product:
        monkeypatch.setattr(product_choice, "DENSE", "gathered_reference")
    block = rewritten(pruned, FusionParts())
    assert (block.norms, block.residual_norms) == (2, len(by_norms))
    assert [place for place in (1, 3) if not block.products[place].residual] == by_norms


@pytest.mark.parametrize("network", ["bert", "vit"])
@pytest.mark.parametrize("part", ["joined", "activation", "residual", "compact"])
def test_without_one_part(request, network, part):
    pruned = request.getfixturevalue(network)(TileWise(16), 0.75)
    products = rewritten(pruned, FusionParts(**{part: False})).products
    assert (len(products) == 6) == (part == "joined")
    assert any(product.activation == "gelu" for product in products) == (part != "activation")
    assert any(product.residual for product in products) == (part != "residual")
    assert any(product.vanished_outputs for product in products) == (part not in ("activation", "compact"))
