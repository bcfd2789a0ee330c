"""A network that has another sparsity than was asked for is told as such before it is recovered."""

import logging
from types import SimpleNamespace

import torch
from torch import nn

from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masks import Masks
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.one_shot import OneShot
from sparsefront.stages.prune import missed_target


def told(
    kept: list[float | None], *, schedule: object = OneShot(), sparsities: dict | None = None, **allocation: object
):
    """Of a network of equal layers, each with the density of its mask; None: it has no mask."""
    net = nn.Sequential(*(nn.Linear(10, 10) for _ in kept))
    masks = {str(n): torch.arange(100) < 100 * density for n, density in enumerate(kept) if density is not None}
    ignored = {str(number): "too small" for number, density in enumerate(kept) if density is None}
    settings = {"allocation": SimpleNamespace(**allocation), "pattern": ElementWise(), "schedule": schedule}
    experiment = SimpleNamespace(sparsity=0.75, **settings)
    found = Masks(masks, spec=MaskSpec(sparsities=sparsities), ignored=ignored)
    return missed_target(experiment, net, found, [str(number) for number in range(len(kept))])


def test_what_comes_near_or_has_a_budget_is_not_told():
    assert told([0.25, 0.27]) is None
    assert told([0.6, None], speedup=1.5) is None and told([0.6], latency_ms=2.0) is None
    assert told([0.6], speedup=None, latency_ms=None) is not None


def test_a_schedule_that_goes_on_is_judged_by_its_end():
    assert told([1.0, 1.0], schedule=Gradual()) is None
    assert told([1.0, 1.0], schedule=Gradual(), sparsities={"0": 0.9, "1": 0.6}) is None
    assert told([1.0, None], schedule=Gradual()) == (
        "pruning: 0.38 of the weights will be gone where sparsity=0.75 was asked for: 1 of 2 layers stay dense (too small)"
    )


def test_a_run_says_so_before_it_recovers(run, caplog):
    row = run("trainer=cpu", "measure.device=cpu", "measure.evaluate_limit=8", "recipe.ignore=[fc]")
    warnings = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    (line,) = (text for text in warnings if text.startswith("pruning: "))
    assert line.startswith(f"pruning: {row.sparsity.sparsity_achieved:.2f} of the weights are gone where sparsity=")
    assert f"{len(row.sparsity.dense_layers)} of {len(row.sparsity.sparsity_per_layer)} layers stay dense (" in line
