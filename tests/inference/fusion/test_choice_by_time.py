"""Choices by time, with times that the test gives: what is timed, what counts as equal work, what stays as it is."""

import copy
from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, Problem, entry

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import block_pass, product_choice
from sparsefront.inference.fusion import fused_product as candidates
from sparsefront.inference.fusion.block_pass import UNCHANGED, fuse_blocks, fuse_dense
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.fused_product import FusedCorrectnessCheck
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise


def fused(pruned, choice, **options):
    net = copy.deepcopy(pruned.net)
    return net, fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], choice, **options)


def kernels(report):
    return {product.kernel for block in report.blocks.values() for product in block.products}


@pytest.mark.parametrize(
    ("mode", "sparse_us", "expected"),
    [("auto", 10.0, "gathered_reference"), ("auto", 30.0, "dense_linear"), ("sparse", 30.0, "gathered_reference")],
)
def test_fastest_allowed_kernel_runs(mode, sparse_us, expected, bert, clock):
    clock.products_us["gathered_reference"] = sparse_us
    _, report = fused(bert(TileWise(32)), KernelChoice(mode))
    assert kernels(report) == {expected}
    for block in report.blocks.values():
        for product in block.products:
            assert product.timed_like or product.candidates.keys() == {"dense_linear", "gathered_reference"}
            assert product.latency_us == product.candidates[expected]


@pytest.mark.parametrize(("us", "expected"), [(15.0, "dense_cublaslt"), (25.0, "dense_linear")])
def test_dense_product_with_its_activation(us, expected, bert, clock, monkeypatch):
    """Where an activation follows, a dense kernel that computes it is timed beside cuBLAS and another pass."""
    clock.products_us["dense_cublaslt"] = us
    kernel = replace(entry("dense_cublaslt"), unsupported=lambda stored, problem: None)
    monkeypatch.setattr(candidates, "epilogue_kernels", lambda activation, bias: [kernel])
    monkeypatch.setattr(KernelChoice, "runs_plain", lambda self, device: False)
    pruned = bert(TileWise(32))
    net = copy.deepcopy(pruned.net)
    report = fuse_dense(net, pruned.inputs[0], layout="row_major")
    products = [product for block in report.blocks.values() for product in block.products]
    assert {product.activation for product in products} == {"none", "gelu"}
    for product in products:
        assert product.kernel == (expected if product.activation == "gelu" else "dense_linear")
        assert ("dense_cublaslt" in product.candidates) == (product.activation == "gelu")
    with torch.inference_mode():
        for inputs in pruned.inputs:
            assert output_error(net(**inputs), pruned.net(**inputs)) < 1e-5
    again = copy.deepcopy(pruned.net)
    assert fuse_dense(again, pruned.inputs[0], plan=report.plan).plan == report.plan


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ({"row_major", "feature_to_row"}, {"feature_to_row"}),
        ({"row_major", "feature_major"}, {"row_major", "feature_major"}),
        ({"feature_major"}, {"feature_major"}),
        ((), ()),
    ],
)
def test_other_layouts_are_tried(runs, expected, monkeypatch):
    kernel = KernelEntry(
        name="some",
        family="csr",
        product=None,
        layouts=("row_major", "feature_major", "feature_to_row"),
        is_reference=True,
        unsupported=lambda stored, problem: None if problem.layout in runs else f"not {problem.layout}",
    )
    monkeypatch.setattr(candidates, "entries", lambda: [kernel])
    weight = torch.eye(8)
    held = ProductWeight(("layer",), (8,), weight, None, weight != 0, FORMATS["csr"].from_dense(weight, weight != 0))
    problem = Problem(4, 8, 8, torch.float32, torch.device("cpu"), "feature_to_row")
    report = candidates.sparse_candidates(held, problem, KernelChoice())
    assert {candidate.layout for candidate in report.usable} == set(expected)
    not_tried = set(kernel.layouts) - {"feature_to_row"} if "feature_to_row" in runs else set()
    assert report.unsupported.keys() == {kernel.label(one) for one in set(kernel.layouts) - set(runs) - not_tried}


@pytest.mark.parametrize("faster", ["feature_major", "row_major"])
def test_the_faster_layout_stays(faster, bert, clock):
    clock.blocks_ms[faster] = 0.5
    net, report = fused(bert(TileWise(32)), KernelChoice("sparse"))
    assert {block.layout for block in report.blocks.values()} == {faster} == {report.layout}
    (times,) = report.variants_ms.values()
    assert times.keys() == {"feature_major", "row_major"} and times[faster] == min(times.values())
    assert "plain" not in clock.timed_blocks
    assert "row_major, compiled" in clock.timed_blocks, "as the whole network may run"
    assert sum(isinstance(part, FusedBlock) for part in net.modules()) == 2


@pytest.mark.parametrize(("chunks_ms", "in_chunks"), [(0.9, True), (0.99, False), (1.1, False)])
@pytest.mark.parametrize("dense", [False, True])
def test_hidden_features_larger_than_l2(dense, chunks_ms, in_chunks, bert, clock, monkeypatch):
    """Sparse and dense blocks may compute them in chunks."""
    clock.blocks_ms["feature_major_in_chunks"] = chunks_ms
    monkeypatch.setattr(block_pass, "l2_bytes", lambda device: 2 * 16 * 3 * 512)  # half a byte of each hidden feature
    pruned = bert(TileWise(32))
    if dense:
        report = fuse_dense(pruned.net, pruned.inputs[0], layout="feature_major")
    else:
        _, report = fused(pruned, KernelChoice("sparse"))
    (times,) = report.variants_ms.values()
    assert set(times) == {"feature_major", "feature_major_in_chunks"} | (set() if dense else {"row_major"})
    assert {block.hidden_bytes for block in report.blocks.values()} == {16 * 3 * 512 if in_chunks else None}


def test_blocks_stay_where_faster(bert, clock):
    clock.blocks_ms["plain"] = 0.1
    pruned = bert(TileWise(32))
    net, report = fused(pruned, KernelChoice())
    assert not any(isinstance(part, FusedBlock) for part in net.modules())
    assert len(report.faster_dense) == len(report.blocks) == 2 and not report.rewritten and not report.unsupported
    (times,) = report.variants_ms.values()
    assert times[UNCHANGED] == pytest.approx(0.2)
    assert all("0.20 ms" in why for why in report.faster_dense.values())
    assert report.plan.blocks == {} and set(report.plan.faster_dense) == set(report.blocks)
    assert report.product_of == {} and report.layers_of("bert.encoder.layer.0")  # times of what it was compared with
    again, second = fused(pruned, KernelChoice(), plan=report.plan)
    assert not second.blocks and not any(isinstance(part, FusedBlock) for part in again.modules())


def test_equal_products_are_timed_once(bert, clock):
    pruned = bert(TileWise(32))
    first, second = "bert.encoder.layer.0.", "bert.encoder.layer.1."
    for name in pruned.formats:
        if name.startswith(second):
            source = name.replace(second, first)
            pruned.masks[name], pruned.formats[name] = pruned.masks[source], pruned.formats[source]
            pruned.net.get_submodule(name).load_state_dict(pruned.net.get_submodule(source).state_dict())
    _, report = fused(pruned, KernelChoice("sparse"))
    one, other = (report.blocks[name[:-1]].products for name in (first, second))
    assert all(product.timed_as is None for product in one)
    assert [product.timed_as for product in other] == ["+".join(product.layers) for product in one]
    assert all(product.relative_error is not None for product in other)
    assert len(clock.timed_products) == 16  # four products in two layouts, and dense beside each


def with_lighter_second_block(bert, sparsity):
    """A network whose second block keeps fewer inputs than its first."""
    pruned, lighter = bert(TileWise(32), 0.5), bert(TileWise(32), sparsity)
    for name in pruned.formats:
        if name.startswith("bert.encoder.layer.1."):
            pruned.masks[name], pruned.formats[name] = lighter.masks[name], lighter.formats[name]
            pruned.net.get_submodule(name).load_state_dict(lighter.net.get_submodule(name).state_dict())
    return pruned


@pytest.mark.parametrize(("dense_us", "beside"), [(14.0, True), (16.0, False)])
def test_nearly_equal_products(dense_us, beside, bert, clock, caplog, monkeypatch):
    """Each is still checked, and says which product it was compared with."""
    monkeypatch.setattr(product_choice, "NEARLY", 3.0)
    clock.products_us["dense_linear"] = dense_us
    with caplog.at_level("INFO"):
        _, report = fused(with_lighter_second_block(bert, 0.75), KernelChoice("auto"))
    one, other = (report.blocks[f"bert.encoder.layer.{place}"].products for place in range(2))
    assert all(product.timed_like is None and "dense_linear" in product.candidates for product in one)
    for product in other:
        assert product.timed_like is not None and "were fast in" in product.timing()
        assert product.relative_error is not None and product.timed_as is None
        assert ("dense_linear" in product.candidates) == beside
        assert beside or "1.6 times as long" in product.unsupported["dense_linear"]
    # in two layouts four products of each block; dense only of the first block's and, where it was not slow, of other shapes
    timed = [kernel for kernel, *_ in clock.timed_products]
    assert timed.count("gathered_reference") == 16 and timed.count("dense_linear") <= 8 + 4 * beside
    assert "16 products timed" in caplog.text and f"{len(timed)} times of a product" in caplog.text


def test_wrong_fast_kernel_leaves_the_others(bert, clock, monkeypatch):
    """Those that were not tried are tried then."""
    monkeypatch.setattr(product_choice, "NEARLY", 3.0)
    pruned = with_lighter_second_block(bert, 0.75)
    evaluate = FusedCorrectnessCheck.evaluate

    def wrong_in_the_second(self, candidate):
        is_wrong = any(".layer.1." in name for name in self.spec.weight.layers) and candidate.format.family != "dense"
        return (1.0, "wrong") if is_wrong else evaluate(self, candidate)

    monkeypatch.setattr(FusedCorrectnessCheck, "evaluate", wrong_in_the_second)
    _, report = fused(pruned, KernelChoice("auto"))
    one, other = (report.blocks[f"bert.encoder.layer.{place}"].products for place in range(2))
    assert {product.kernel for product in one} == {"gathered_reference"}
    assert {product.kernel for product in other} == {"dense_linear"}


@pytest.fixture
def spec():
    """A product of 16 x 16 weights, stored in tiles."""
    mask = (torch.rand(2, 16) < 0.5).repeat_interleave(8, 0)
    weight = torch.randn(16, 16) * mask
    stored = FORMATS["gathered"].from_dense(weight, mask, tile=8)
    held = ProductWeight(("layer",), (16,), weight, None, mask, stored)
    return ProductSpec(held, "none", residual=False, x_stream=True, y_stream=True, normed=False, density=0.5)


@pytest.mark.parametrize("mode", ["auto", "sparse"])
def test_chosen_network_is_the_masked_one(mode, vit, clock):
    clock.products_us["gathered_reference"] = 15.0
    pruned = vit(TileWise(32))
    net, _ = fused(pruned, KernelChoice(mode))
    with torch.inference_mode():
        torch.testing.assert_close(net(**pruned.inputs[1]), pruned.net(**pruned.inputs[1]), rtol=1e-4, atol=1e-5)
