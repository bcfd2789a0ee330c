"""On a GPU, whose times a clock stands in for: low precision is one more way of a chain, and the baseline's only one."""

import copy

import pytest
import torch

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import placement, product_choice
from sparsefront.inference.fusion.block_pass import (
    TURNS,
    UNCHANGED,
    WORTH_IT,
    Rewriting,
    fastest_rewriting,
    fuse_blocks,
    fuse_dense,
)
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.precision import Precision
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.block_wise import BlockWise

FP8 = Precision("fp8")


@pytest.fixture
def fp8_clock(clock):
    clock.products_us |= {"blocked_reference": 10.0, "blocked_fp8_reference": 12.0, "dense_fp8_reference": 15.0}
    return clock


def fused(pruned, choice, **options):
    net = copy.deepcopy(pruned.net)
    return net, fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], choice, precision=FP8, **options)


@pytest.mark.parametrize("fastest", ["row_major", "feature_major"])
def test_whole_chains_decide(fastest, bert, fp8_clock):
    """The kernel in fp8 is slower alone: it runs where the chain is faster, here the first of two that are equally so."""
    fp8_clock.blocks_ms |= {"row_major": 2.0, "feature_major": 2.0, fastest: 1.0}
    pruned = bert(BlockWise("64x128"))
    _, report = fused(pruned, KernelChoice())
    (times,) = report.variants_ms.values()
    assert set(times) == {"row_major_fp8", "row_major", "feature_major", UNCHANGED}
    kernels = {product.kernel for block in report.rewritten.values() for product in block.products}
    fp8 = fastest == "row_major"
    assert kernels == ({"blocked_fp8_reference"} if fp8 else {"blocked_reference"})
    assert all(block.layout == fastest for block in report.rewritten.values())
    (product, *_) = next(iter(report.blocks.values())).products
    if fp8:
        assert product.candidates == {
            "blocked_fp8_reference": 12.0,
            "blocked_reference": 10.0,
            "dense_fp8_reference": 15.0,
            "dense_linear": 20.0,
        }


CLEAR = (1.0, WORTH_IT + 0.01)  # of the faster one and of the other
CLOSE = (1.0, WORTH_IT - 0.01)


@pytest.mark.parametrize(
    ("turns", "expected", "repeats"),
    [
        ([CLEAR] * TURNS, "row_major", TURNS - 1),
        ([CLEAR] * (TURNS - 1) + [CLOSE], "fp8", TURNS - 1),
        ([CLEAR, CLOSE], "fp8", 1),
        ([CLOSE], "fp8", 0),
        ([CLEAR[::-1]], "fp8", 0),
        ([CLEAR, (None, None)], "fp8", 1),
        ([(1.0, None)], "row_major", 0),
        ([(None, 1.0)], "fp8", 0),
    ],
)
def test_fp8_stays_unless_others_win_always(turns, expected, repeats):
    low, layout = Rewriting("row_major", True, "fp8"), Rewriting("row_major", False, "row_major")
    (first, *more), asked = turns, []
    again = iter([time for others, own in more for time in (own, others)])
    times = {"row_major": first[0], "fp8": first[1]}
    chosen = fastest_rewriting([low, layout], times, lambda one: asked.append(one.name) or next(again))
    assert chosen.name == expected and asked == ["fp8", "row_major"] * repeats
    assert (
        fastest_rewriting(
            [layout, Rewriting("feature_major", False, "other")], {"other": 0.99, "row_major": 1.0}, None
        ).name
        == "other"
    )


def test_baseline_runs_in_fp8(bert, fp8_clock):
    fp8_clock.products_us["dense_fp8_reference"] = 30.0
    report = fuse_dense(bert(BlockWise("64x128")).net, bert(BlockWise("64x128")).inputs[0], precision=FP8)
    kernels = {product.kernel for block in report.rewritten.values() for product in block.products}
    assert kernels == {"dense_fp8_reference"} and not report.variants_ms


def test_norms_quantize_for_their_products(bert, monkeypatch):
    """Query, key and value, and the product into the hidden layer, read e4m3 of the norm; the next sum reads the norm itself."""
    for module in (placement, product_choice):
        monkeypatch.setattr(module, "rows_unsupported_reason", lambda *args, **vectors: None)
    pruned = bert(BlockWise("64x128"))
    plain = copy.deepcopy(pruned.net)
    report = fuse_dense(pruned.net, pruned.inputs[0], precision=FP8)
    blocks = [block for block in pruned.net.modules() if isinstance(block, FusedBlock)]
    asked = [(norm.keep_norm, norm.keep_sums, norm.quantized) for block in blocks for norm in block.norms]
    assert len(report.rewritten) == len(blocks) > 0
    assert asked == [(True, False, True), (True, False, False)] * len(blocks)  # the next block quantises the second
    with torch.no_grad():
        assert output_error(pruned.net(**pruned.inputs[0]), plain(**pruned.inputs[0])) < 0.1
