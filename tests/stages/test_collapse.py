"""A run whose layers collapse says so in the log, the record, the terminal and the page; the default run has none."""

import logging
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

SOURCES = ("pattern.input_multiple=1", "pattern.aggregate=l2_over_length")
SMALL = ("trainer=cpu", "measure.device=cpu", "measure.evaluate_limit=8", "model.dim=64", "model.depth=2", *SOURCES)
LONG_ROWS = ["blocks.0.mlp.fc2", "blocks.1.mlp.fc2"]  # K four times that of the others: l2 / length ranks them last
WARNING = "2 of 12 layers collapsed at target density 0.25: blocks.[0,1].mlp.fc2 lost every weight"


def warnings(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_lost_layers_are_told_again(full_run, caplog, capsys):
    asked = (*SMALL, "allocation=global_threshold")
    row = full_run(*asked)
    assert row.sparsity.collapsed_layers == dict.fromkeys(LONG_ROWS, 0.0)
    early, final = (text for text in warnings(caplog) if "collapsed" in text)
    assert early.startswith(f"prune: {WARNING}") and final.startswith(WARNING)
    for setting in ("allocation=per_layer", "allocation.min_density_share="):
        assert setting in final
    shown = " ".join(capsys.readouterr().out.split())
    assert "layers collapsed 2: blocks.[0,1].mlp.fc2" in shown
    page = (Path(HydraConfig.get().runtime.output_dir) / "report.html").read_text()
    assert page.count('<td class="collapsed">1.000 (collapsed)</td>') == 2 and WARNING in page

    caplog.clear()
    assert full_run(*asked) == row
    assert [text.startswith(WARNING) for text in warnings(caplog)] == [True]
