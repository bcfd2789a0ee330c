"""What a row says of its training is what the optimizer did, and a schedule of rounds costs no more than one of one."""

import pytest
import torch

from sparsefront.training.recipe import AdamS

ON_CPU = ["trainer=cpu", "measure.device=cpu", "pattern=element_wise", "model.dim=64", "model.depth=1", "kernel=none"]
NO_PAGES = ["report.html=false", "report.plot=false"]
EPOCH = 2  # steps, by debug=tiny
FINETUNE = ["recipe.recovery_epochs=3", "recipe.batch_size=50"]
ROUNDS = ["schedule=iterative", "schedule.rounds=2"]


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """One entry for each step of any AdamW or AdamS: rows of the batch are not seen here."""
    taken = []
    for optimizer in (torch.optim.AdamW, AdamS):

        def counted(self, *arguments, step=optimizer.step, **named):
            taken.append(1)
            return step(self, *arguments, **named)

        monkeypatch.setattr(optimizer, "step", counted)
    return taken


WAYS = {
    "one shot": ([], 6),
    "rounds share it unevenly": (["schedule=iterative", "schedule.rounds=4"], 6),
    "gradual": (["schedule=gradual"], 6),
    "distill": (["recovery=distill", *ROUNDS], 6),
    "sparse_swaps, trained": (["recovery=sparse_swaps", "recovery.batches=2", "recovery.along=finetune", *ROUNDS], 6),
    "sr_ste": (["recovery=sr_ste", "pattern=n_m"], 6),
    "rewinding repeats": (["recovery=lr_rewind", "recipe.epochs=3", *ROUNDS], 12),
    "none": (["recovery=none"], 0),
}


@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS)
def test_row_holds_the_optimizers_steps(run, steps, way, expected):
    row = run(*ON_CPU, *NO_PAGES, *FINETUNE, *way)
    cost = row.cost
    assert (
        cost.dense_steps == EPOCH * row.choice.recipe_parameters["epochs"]
        and cost.dense_samples == 50 * cost.dense_steps
    )
    assert len(steps) == cost.dense_steps + cost.recovery_steps
    assert cost.recovery_steps == expected
    assert cost.recovery_epochs == expected / EPOCH and cost.recovery_samples == 50 * expected


def test_a_dense_row_has_no_recovery(run):
    cost = run(*ON_CPU, "pattern=dense").cost
    assert cost.dense_steps == EPOCH
    assert (cost.recovery_steps, cost.recovery_epochs, cost.recovery_samples) == (None, None, None)
