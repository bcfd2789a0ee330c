"""Each stage of each run draws from a seed of its own.

Epochs, rounds and stages take the training samples in orders, and with augmentations, of their own.
"""

import torch

from sparsefront.config.validate import validate
from sparsefront.stages.keys import stage_seed
from sparsefront.stages.network import build_net

STAGES = ["initial weights", "dense", "prune", *(f"recover {index}" for index in range(20))]


def test_ten_thousand_combinations_share_no_seed():
    """Of dense network, recovery, stage and round: ten of each seed, fifty rounds, with the orders of the samples."""
    stages = [f"{stage}{order}" for stage in STAGES[:3] for order in ("", ", order")]
    rounds = [f"recover {index}{order}" for index in range(50) for order in ("", ", order")]
    drawn = [stage_seed(seed, stage) for seed in range(10) for stage in stages]
    drawn += [stage_seed(seed, again, stage) for seed in range(10) for again in range(10) for stage in rounds]
    assert len(drawn) > 10_000 and len(set(drawn)) == len(drawn)


def test_seed_is_the_same_everywhere():
    """Python's own hash of text is not."""
    assert stage_seed(3, "dense") == 1_862_342_600


def test_initial_weights_are_the_seeds(composed):
    runs = [validate(composed("model.dim=64", "model.depth=1", f"seed={seed}")) for seed in (0, 1, 0)]
    first, second, again = (build_net(run).head.weight for run in runs)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_dense_network_recovers_under_another_seed(run):
    tiny = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64"]
    first, second, again = (run(*tiny, f"recovery.seed={seed}") for seed in (0, 1, 0))
    assert first.identity.dense_weights_sha256 == second.identity.dense_weights_sha256 and second.cost.dense_reused
    assert first.identity.weights_sha256 != second.identity.weights_sha256
    assert again.identity.run_id == first.identity.run_id != second.identity.run_id
    assert [(row.identity.seed, row.identity.recovery_seed) for row in (first, second)] == [(0, 0), (0, 1)]
