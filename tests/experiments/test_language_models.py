"""The study of language models on a tiny Llama: what the program makes of it is what plain PyTorch makes of it."""

import pytest
import torch

import sparsefront as sf
from experiments.harness.rows import read_lines
from experiments.language_models import decode, study


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("tiny")
    study.main(["--tiny", str(folder), "--points", "wanda,obs,obs 2:4"])
    return read_lines(folder / "tiny.csv")


def test_the_program_is_the_plain_version(rows: list[dict[str, str]]) -> None:
    """Random weights predict nothing, so that other masks cost little: they would be apart by a thousandth."""
    assert [row["point"] for row in rows] == ["wanda", "obs", "obs 2:4"]
    for row in rows:
        assert float(row["apart"]) < 1e-5 and row["dense"] == row["plain_dense"], row
        assert int(row["windows"]) > 20 and int(row["calibration_windows"]) > 20
    assert len({row["perplexity"] for row in rows}) == 3


@pytest.mark.parametrize("point", ["n_m 75%", "tile_wise 75% int8"])
def test_a_row_of_generated_text(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setitem(decode.TILES, "granularity", 16)
    net = decode.llama(blocks=2, width=64, hidden=96, heads=4, vocabulary=61).eval()
    settings = sf.Measure(mode="decode", execution_modes=["eager"], variants=[], samples=5, repeats=1, warmup=0)
    monkeypatch.setattr(decode, "int8_unavailable_reason", lambda: "needs torchao")
    (row,) = decode.measure_batch(net, 2, [point], settings, context=8, seconds=5.0)
    assert set(row) == set(decode.COLUMNS) and row["gpu"] == "" and row["graphed_ms"] is row["int8_ms"] is None
    family = "gathered_int8" if "int8" in point else "n_m"
    assert row["blocks_rewritten"] == 2 and row["cache_length"] == 64 and f"{family}_reference" in row["kernels"]
    assert decode.page([{name: str(decode.text(row[name])) for name in row}]).count("\n") == 2
