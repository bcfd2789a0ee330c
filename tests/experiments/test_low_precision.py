"""The study of low precision: a page whose tables are those of its files."""

from dataclasses import replace
from pathlib import Path

import torch

from experiments.end_to_end.study import Options
from experiments.harness.rows import read_lines
from experiments.low_precision import large, operators, summary, tiles
from experiments.low_precision.operators import FP16, PEERS, Cell, cells
from sparsefront.measure.settings import Measure

FOLDER = Path(operators.__file__).parent


def test_page_holds_tables_of_the_files():
    page = (FOLDER / "README.md").read_text().splitlines()
    for table in (
        summary.network_table([summary.RECORDS]),
        summary.large_table(read_lines(FOLDER / "large.csv")),
        summary.peers_table(read_lines(FOLDER / "peers.csv")),
        operators.table(read_lines(FOLDER / "operators.csv")),
    ):
        assert len(table) > 2 and set(table) <= set(page)


def test_dry_run_swaps_in_fp8(tmp_path, caplog):
    settings = Measure(execution_modes=["eager"], variants=[])
    options = Options(tmp_path / "rows.csv", settings, timed=False, tiny=True)
    first = large.all_points()[0]
    assert first.columns["granularity"] == "64x128" and len(large.all_points()) == 12
    with caplog.at_level("INFO"):
        large.measure(replace(first, batch=2, sequence_length=24), options)
    assert "blocked_fp8_reference" in caplog.text and not options.file.exists()


def test_peers_come_first():
    found = list(cells([4096], [(1024, 2048)]))
    assert [cell.kernel for cell in found[: len(PEERS)]] == list(PEERS)
    assert Cell(4096, 1024, 2048, FP16, "64x128", 0.9) in found and len(found) == len(PEERS) + 18


def test_copy_for_tiles_holds_its_inputs():
    x, kept = (
        torch.randint(256, (70, 300), dtype=torch.uint8),
        torch.stack([torch.randperm(300)[:144] for _ in range(3)]),
    )
    assert all(torch.equal(chunk, x[:, inputs]) for chunk, inputs in zip(tiles.gathered(x, kept), kept, strict=True))


def test_question_stands_beside_its_rows():
    row = {"k": "1024", "n": "1024", "block": "", "sparsity": "0.0", "latency_us": "4"}
    blocks = {"kernel": operators.FP8, "block": "128x128", "sparsity": "0.5", "latency_us": "2"}
    rows = [
        line
        for m in ("4096", "256")
        for line in (
            row | {"m": m, "kernel": operators.ROWWISE},
            row | {"m": m, "kernel": operators.TENSORWISE},
            row | blocks | {"m": m},
        )
    ]
    asked = [line for line in operators.table(rows) if "*asked*" in line]
    assert len(asked) == 1 and asked[0].startswith("| 4096 |")
