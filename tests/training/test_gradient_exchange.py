"""One exchange of all gradients after the backward pass trains as PyTorch's DDP does."""

from dataclasses import replace

import pytest
import torch
from whole_calls import on_every_rank

from sparsefront.training.trainer import TrainerSettings

TWO = TrainerSettings(accelerator="cpu", devices=2, limit_batches=4, progress_bar=False)
AFTER = replace(TWO, exchange_gradients="after_backward")


@pytest.mark.parametrize("batches", [1, 2])
def test_ranks_end_with_bits_of_ddp(bodies, served_ranks, tmp_path, batches):
    """Weights and statistics of BatchNorm, also where two batches are accumulated into a step."""
    ends = []
    for trainer in (TWO, AFTER):
        trainer = replace(trainer, accumulate_grad_batches=batches)
        where = {"trainer": trainer, "folder": tmp_path, "loggers": []}
        first, second = on_every_rank(bodies.train_partly, trainer, bodies.always, **where)
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
        ends.append(first)
    ddp, ours = ends
    assert "norm.running_mean" in ddp and ddp.keys() == ours.keys()
    for name in ddp:
        assert torch.equal(ddp[name], ours[name]), name


def test_gradients_travel_as_bf16(bodies, served_ranks, tmp_path):
    """On a CPU the setting is rejected: the strategy itself does it."""
    first, second = on_every_rank(bodies.averaged, trainer=TWO, folder=tmp_path, loggers=[])
    for found in (first, second):
        assert torch.equal(found["exact"], torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
    assert first["compressed"].dtype == torch.float32 and torch.equal(first["compressed"], second["compressed"])
    assert first["compressed"][0, 0] == (torch.tensor(1 + 2**-12) / 2).bfloat16() * 2  # rounded on the way


@pytest.mark.parametrize(("used", "where"), [("on_rank_0", "on all ranks"), ("from_the_second_step", "in all steps")])
def test_partly_used_parameter_is_named(bodies, served_ranks, tmp_path, used, where):
    with pytest.raises(RuntimeError, match=rf"parameter net\.extra\.(weight|bias) has .* not {where}"):
        on_every_rank(bodies.train_partly, AFTER, getattr(bodies, used), trainer=AFTER, folder=tmp_path, loggers=[])
