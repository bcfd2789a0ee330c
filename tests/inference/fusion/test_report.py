"""What a terminal shows of the pass is short; every product stands in the result and in the log at DEBUG."""

import logging

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.plan import BlockReport, FusionReport, ProductReport
from sparsefront.patterns.tile_wise import TileWise


def product(kernel: str) -> ProductReport:
    return ProductReport(("layer",), kernel, "gathered", 8, 64, 64, 0.25, "row_major", "none", False, 100)


def test_line_for_each_layout():
    kernels = ["gathered_2_4_reference", "dense_linear", "gathered_2_4_reference", "csr", "ell"]
    blocks = {f"blocks.{number}": BlockReport("feature_major", list(map(product, kernels)), 2) for number in range(24)}
    blocks |= {name: BlockReport("row_major", [product("csr")], 0) for name in ("last", "kept")}
    report = FusionReport(
        blocks,
        unsupported={"odd": "runs twice", "other": "runs twice", "last": "is called with a Cache"},
        faster_dense={"kept": "they take 1.00 ms"},
    )
    assert report.headlines() == [
        "24 blocks rewritten, feature_major: 48 products by gathered_2_4_reference, 24 by dense_linear, 48 by others",
        "1 block rewritten, row_major: 1 product by csr",
        "1 block left as before: they take 1.00 ms",
        "2 blocks not rewritten, odd and 1 more: it runs twice",
        "1 block not rewritten, last: it is called with a Cache",
    ]


def test_log_tells_products_at_debug(bert, caplog):
    pruned = bert(TileWise(8))
    with caplog.at_level(logging.DEBUG, logger="sparsefront"):
        report = fuse_blocks(pruned.net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    lines = {
        level: [one.getMessage() for one in caplog.records if one.levelname == level] for level in ("INFO", "DEBUG")
    }
    assert set(report.headlines()) <= set(lines["INFO"]) and max(map(len, lines["INFO"])) <= 120
    (full, count), *_ = report.summary().items()
    assert f"{count} blocks: {full}" in lines["DEBUG"] and full not in "\n".join(lines["INFO"])
