"""Each stage of each run draws from a seed of its own.

Epochs, rounds and stages take the training samples in orders, and with augmentations, of their own.
"""

import torch

from sparsefront.config.validate import validate
from sparsefront.stages.keys import reseed, stage_seed
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


def test_stage_draws_its_own_numbers(composed):
    one, next_one = (validate(composed("model.dim=64", "model.depth=1", f"seed={seed}")) for seed in (0, 1))
    draws = []
    for experiment in (one, next_one):
        for stage in ("initial weights", "dense", "prune", "recover 0"):
            reseed(stage_seed(experiment.seed, stage))
            draws.append(torch.rand(8))
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)
    reseed(stage_seed(one.seed, "dense"))
    assert torch.equal(torch.rand(8), draws[1])
    weights = [build_net(experiment).head.weight for experiment in (one, next_one, one)]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])


def test_dense_network_recovers_under_another_seed(run):
    tiny = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64"]
    first, second, again = (run(*tiny, f"recovery.seed={seed}") for seed in (0, 1, 0))
    assert first.identity.dense_weights_sha256 == second.identity.dense_weights_sha256 and second.cost.dense_reused
    assert first.identity.weights_sha256 != second.identity.weights_sha256
    assert again.identity.run_id == first.identity.run_id != second.identity.run_id
    assert [(row.identity.seed, row.identity.recovery_seed) for row in (first, second)] == [(0, 0), (0, 1)]
