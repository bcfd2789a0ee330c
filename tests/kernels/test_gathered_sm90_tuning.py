"""Launch parameters of the Hopper kernel: what is worth timing, what is found again."""

from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.gathered.sm90 import LAUNCHES, SHARED, Sm90Launch, Sm90Problem, best_predicted
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90
from sparsefront_kernels.tuning import launches
from sparsefront_kernels.tuning.launches import chosen_launch


def test_trial_counts_until_it_ends(nothing_tuned, monkeypatch):
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 96), torch.ones(256, 96) > 0, tile=128))
    problem = Problem(m=64, k=96, n=256, dtype=torch.float16, device=torch.device("cpu"))
    measured, tried = Sm90Launch(64, 4, 16, 2), Sm90Launch(128, 6, 16, 1)
    untuned = LAUNCHES.launch(packed, problem)
    LAUNCHES.try_out(packed, problem, tried)
    assert LAUNCHES.launch(packed, problem) == tried and LAUNCHES.on_trial(packed, problem)
    assert not LAUNCHES.measured(packed, problem)
    LAUNCHES.end_trial(packed, problem)
    assert LAUNCHES.launch(packed, problem) == untuned and not LAUNCHES.on_trial(packed, problem)
    LAUNCHES.remember(packed, problem, measured, 1.0)
    LAUNCHES.try_out(packed, problem, tried)
    assert LAUNCHES.launch(packed, problem) == tried
    LAUNCHES.end_trial(packed, problem)
    assert LAUNCHES.launch(packed, problem) == measured
    LAUNCHES.end_trial(packed, problem)


@pytest.mark.parametrize("m", [64, 4096])
def test_uneven_lists_have_own_launches(nothing_tuned, m):
    """With those of equal lists blocks wait for the longest list: they lost to predicted ones at few rows."""
    equal = Sm90Problem(m, 64, 512, 4, 16, (4, 4, 4, 4))
    uneven = Sm90Problem(m, 64, 512, 4, 16, (9, 4, 3, 0))
    of_equal, of_uneven = Sm90Launch(64, 4, 16, 2), Sm90Launch(128, 6, 16, 1)
    LAUNCHES.record(equal, of_equal, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, uneven, "GPU", 132) == (best_predicted(uneven, 132) if m == 64 else of_equal)
    LAUNCHES.record(uneven, of_uneven, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, uneven, "GPU", 132) == of_uneven
    assert chosen_launch(LAUNCHES, equal, "GPU", 132) == of_equal


def test_weight_keeps_its_launch(nothing_tuned):
    """A network gets inputs of a new length: predictions for each of its products would take a tenth of a second."""
    lists = (9, 8, 8, 7, 0, 0)
    at, few_rows = (Sm90Problem(m, 1024, 768, 6, 34, lists) for m in (12288, 512))
    odd, other = Sm90Launch(128, 6, 16, 2), Sm90Launch(128, 6, 4, 1)
    LAUNCHES.record(at, odd, 1.0, "GPU")
    LAUNCHES.record(few_rows, other, 1.0, "GPU")
    for m, expected in ((6144, odd), (10240, odd), (24576, odd), (6136, None), (24584, None), (640, None)):
        problem = replace(at, m=m)
        assert chosen_launch(LAUNCHES, problem, "GPU", 132) == (expected or best_predicted(problem, 132)), m
    shorter = replace(at, m=10240, k_blocks=30, lengths=(8, 7, 7, 6, 0, 0))
    assert chosen_launch(LAUNCHES, shorter, "GPU", 132) == best_predicted(shorter, 132)
    LAUNCHES.record(replace(at, m=9008), SHARED[0], 1.0, "GPU")
    LAUNCHES.record(replace(at, m=8192), other, 1.0, "GPU")
    assert chosen_launch(LAUNCHES, replace(at, m=9000), "GPU", 132) == other
    assert chosen_launch(LAUNCHES, replace(at, m=11000), "GPU", 132) == odd


@pytest.mark.parametrize("tile", [24, 96, 200])
def test_tiles_that_misfit_half_tiles(tile):
    stored = FORMATS["gathered"].from_dense(torch.randn(200, 8), torch.ones(200, 8, dtype=torch.bool), tile=tile)
    with pytest.raises(ValueError, match=f"not tiles of {tile} outputs"):
        pack_for_sm90(stored)
