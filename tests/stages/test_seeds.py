"""Each stage of each run draws from a seed of its own."""

import subprocess
import sys

import torch

from sparsefront.stages.network import build_net, reseed, stage_seed
from sparsefront.validate import validate

STAGES = ["initial weights", "dense", "prune", *(f"recover {index}" for index in range(20))]


def test_neighboring_seeds_share_no_stage_s_seed():
    drawn = [stage_seed(seed, stage) for seed in range(1000) for stage in STAGES]
    assert len(set(drawn)) >= len(drawn) - 2, "of 23000 in 2^32, 0.06 collisions are expected"
    assert all(0 <= seed < 2**32 for seed in drawn)


def test_names_of_the_same_letters_are_other_stages():
    assert len({stage_seed(0, stage) for stage in ("recover 12", "recover 21", "dense", "sedne")}) == 4


def test_the_seed_is_the_same_in_every_process():
    """Python's own hash of text is not."""
    code = "from sparsefront.stages.network import stage_seed; print(stage_seed(3, 'dense'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(told) == stage_seed(3, "dense")


def test_a_stage_draws_neither_what_another_draws_nor_what_a_neighboring_run_does(composed):
    one, next_one = (validate(composed("model.dim=64", "model.depth=1", f"seed={seed}")) for seed in (0, 1))
    draws = []
    for experiment in (one, next_one):
        for stage in ("initial weights", "dense", "prune", "recover 0"):
            reseed(experiment, stage)
            draws.append(torch.rand(8))
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)
    reseed(one, "dense")
    assert torch.equal(torch.rand(8), draws[1])
    weights = [build_net(experiment).head.weight for experiment in (one, next_one, one)]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])
