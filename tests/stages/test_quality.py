"""Every network of a run is evaluated on both splits, and what each test sample added lies beside the row."""

from pathlib import Path

import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig

from sparsefront.results.store import read_results
from sparsefront.tasks.outcomes import load_outcomes

ON_CPU = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "pattern=element_wise"]
SIDES = ("dense", "masked", "sparse")


def test_row_holds_both_splits(run):
    for _ in range(2):  # also where a finished point is shown again
        result = run(*ON_CPU, "measure.evaluate_limit=null")
        quality, folder = result.quality, Path(HydraConfig.get().runtime.output_dir)
        assert (quality.evaluated_samples, quality.val_evaluated_samples) == (359, 144)
        assert all(0 <= result.value_of(f"val_{side}") <= 1 for side in SIDES)
        assert all(result.value_of(f"val_{side}_standard_error") is not None for side in SIDES)
        kept = load_outcomes(folder / quality.outcomes_file)
        assert set(kept) == set(SIDES) and len({outcomes.samples for outcomes in kept.values()}) == 1
        for side in SIDES:
            assert kept[side].metric_over(np.arange(359)) == pytest.approx(result.value_of(side))
        assert set(read_results([folder]).outcomes_of(result)) == set(SIDES)
        assert (folder / quality.outcomes_file).stat().st_size < 5000
