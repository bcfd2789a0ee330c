"""The labels of the reporting split decide nothing: shuffled, they change what is reported and no choice."""

import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig
from quick_settings import QUICK

from sparsefront.data import digits
from sparsefront.data.base import hold_out
from sparsefront.data.digits import TEST_FRACTION
from sparsefront.pipeline import run_experiment
from sparsefront.results.candidates import candidates_of
from sparsefront.results.record import Result
from sparsefront.results.statistics import winners

SETTINGS = [
    "debug=tiny",
    "trainer=cpu",
    "measure.device=cpu",
    "measure.evaluate_limit=null",
    "model.dim=64",
    "model.depth=1",
    *QUICK,
]
SETTINGS += ["importance=taylor", "trainer.limit_batches=10", "dataset.shift=1", "recipe.lr=3e-3"]


@pytest.fixture
def points(composed, monkeypatch, tmp_path):
    """points(shuffled) -> results and returned values of a small sweep, on the digits or with shuffled test labels."""
    images, labels = digits._all_digits()
    _, test = hold_out(labels, TEST_FRACTION)
    mixed = labels.copy()
    mixed[test] = np.random.RandomState(0).permutation(labels[test])

    def divided(self, *_: np.ndarray) -> dict[str, np.ndarray]:  # by the true classes: the rows stay the same
        rest, test = hold_out(labels, TEST_FRACTION)
        train, val = hold_out(labels[rest], self.valid_fraction)
        return {"train": rest[train], "val": rest[val], "test": test}

    def sweep(shuffled: bool) -> tuple[list[Result], list[float]]:
        monkeypatch.setattr(digits, "_all_digits", lambda: (images, mixed if shuffled else labels))
        monkeypatch.setattr(digits.Digits, "_rows", divided)
        results, returned = [], []
        for more in (["pattern=element_wise"], ["pattern=block_wise", "granularity=8"]):
            cache = f"cache_dir={tmp_path / str(shuffled)}"
            returned.append(run_experiment(composed(*SETTINGS, *more, cache)))
            folder = HydraConfig.get().runtime.output_dir
            results.append(Result.from_json(open(f"{folder}/row.json").read()))
        return results, returned

    return sweep


def test_shuffled_test_labels_change_no_choice(points):
    (true, chosen_by), (shuffled, chosen_by_shuffled) = points(False), points(True)
    assert chosen_by == chosen_by_shuffled == [result.quality.val_sparse for result in true], "what a sweeper gets"
    for result, other in zip(true, shuffled, strict=True):
        for field in (
            "dense_weights_sha256",
            "weights_sha256",
            "val_dense",
            "val_masked",
            "val_sparse",
            "sparsity_per_layer",
        ):
            assert result.value_of(field) == other.value_of(field), field
        assert result.quality.sparse != other.quality.sparse, "the labels were really shuffled"
    picked = [
        [candidate.pattern for candidate in winners(candidates_of(results))[0.75]] for results in (true, shuffled)
    ]
    assert picked[0] == picked[1] and len(picked[0]) == len(candidates_of(true)) == 2
