"""Each stage of each run draws from a seed of its own."""

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.stages.keys import recovery_stage_seed, reseed, stage_seed
from sparsefront.stages.network import build_net

STAGES = ["initial weights", "dense", "prune", *(f"recover {index}" for index in range(20))]


def test_neighboring_seeds_share_no_stage_s_seed():
    drawn = [stage_seed(seed, stage) for seed in range(1000) for stage in STAGES]
    assert len(set(drawn)) >= len(drawn) - 2, "of 23000 in 2^32, 0.06 collisions are expected"
    assert all(0 <= seed < 2**32 for seed in drawn)


def test_ten_thousand_combinations_share_no_seed():
    """Of dense network, recovery, stage and round: ten of each seed, fifty rounds, with the orders of the samples."""
    stages = [f"{stage}{order}" for stage in STAGES[:3] for order in ("", ", order")]
    rounds = [f"recover {index}{order}" for index in range(50) for order in ("", ", order")]
    drawn = [stage_seed(seed, stage) for seed in range(10) for stage in stages]
    drawn += [stage_seed(seed, again, stage) for seed in range(10) for again in range(10) for stage in rounds]
    assert len(drawn) > 10_000 and len(set(drawn)) == len(drawn)


def test_names_of_the_same_letters_are_other_stages():
    assert len({stage_seed(0, stage) for stage in ("recover 12", "recover 21", "dense", "sedne")}) == 4


def test_the_seed_is_the_same_in_every_process():
    """Python's own hash of text is not."""
    assert stage_seed(3, "dense") == 1_862_342_600


def test_a_stage_draws_neither_what_another_draws_nor_what_a_neighboring_run_does(composed):
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


def test_the_recovery_has_a_seed_of_its_own_that_follows_the_run_s(composed):
    follows, apart = (validate(composed("seed=3", *more)) for more in ([], ["recovery.seed=4"]))
    assert (follows.recovery_seed, apart.recovery_seed) == (3, 4) and apart.seed == 3
    assert recovery_stage_seed(follows, "recover 0") != recovery_stage_seed(apart, "recover 0")
    assert validate(composed("recovery=none", "recovery.seed=7")).recovery_seed == 7


@pytest.mark.parametrize("given", ["-1", "4294967296", "null", "two", "1.5"])
def test_a_seed_that_is_none_is_rejected_by_its_key(composed, given):
    with pytest.raises(InvalidSetting, match="^recovery.seed=.*: must be a whole number from 0 to 4294967295"):
        validate(composed(f"recovery.seed={given}"))


def test_one_dense_network_is_recovered_again_under_another_seed(run):
    tiny = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64"]
    first, second, again = (run(*tiny, f"recovery.seed={seed}") for seed in (0, 1, 0))
    assert first.identity.dense_weights_sha256 == second.identity.dense_weights_sha256 and second.cost.dense_reused
    assert first.identity.weights_sha256 != second.identity.weights_sha256
    assert again.identity.run_id == first.identity.run_id != second.identity.run_id
    assert [(row.identity.seed, row.identity.recovery_seed) for row in (first, second)] == [(0, 0), (0, 1)]
