"""The study of low precision: a page whose tables are those of its files."""

from dataclasses import replace

from experiments.end_to_end.study import Options
from experiments.low_precision import large
from sparsefront.measure.settings import Measure


def test_dry_run_swaps_in_fp8(tmp_path, caplog):
    settings = Measure(execution_modes=["eager"], variants=[])
    options = Options(tmp_path / "rows.csv", settings, timed=False, tiny=True)
    first = large.all_points()[0]
    assert first.columns["granularity"] == "64x128" and len(large.all_points()) == 12
    with caplog.at_level("INFO"):
        large.measure(replace(first, batch=2, sequence_length=24), options)
    assert "blocked_fp8_reference" in caplog.text and not options.file.exists()
