"""Stages that lead nowhere, fields that no result has and packages that are missed in the end are named in the beginning."""

import importlib.util

import pytest

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

REJECTED = {
    "unknown stage": (
        ["stages=[dense,prun]"],
        r"stages=\['dense', 'prun'\]: must be a list of one or more names out of dense, prune",
    ),
    "swap without measure": (
        ["stages=[dense,prune,recover,export,swap]"],
        r"^stages=\[dense,prune,recover,export,swap\]: .*add measure, or leave swap out; there are dense, prune",
    ),
    "swap and a record without measure": (["stages=[swap,report]"], r"stages=\[swap,report\]: .*add measure"),
    "no stage": (["stages=[]"], r"stages=\[\]: must be a list of one or more names out of dense"),
    "a stage twice": (
        ["stages=[dense,prune,dense]"],
        r"^stages=\['dense', 'prune', 'dense'\]: names dense more than once",
    ),
    "unknown field": (
        ["optimize=[speed]"],
        "optimize=speed: .*closest are speedup, speedup_low, speedup_high, .*row.json holds them all$",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


@pytest.mark.parametrize(
    ("package", "overrides", "message"),
    [
        ("jinja2", [], r"^report\.html=True: .*pip install jinja2, or choose report\.html=false"),
        ("matplotlib", ["report.html=false"], r"^report\.plot=True: .*pip install matplotlib"),
        ("wandb", ["logger=wandb"], r"^logger\.mode=auto: .*pip install wandb, or choose logger=csv or logger=none"),
        (
            "tensorboard",
            ["logger=tensorboard"],
            r"^logger=tensorboard: .*pip install tensorboard, or choose logger=csv",
        ),
    ],
)
def test_a_package_that_is_needed_last_is_missed_first(composed, monkeypatch, package, overrides, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))
    validate(composed("report.html=false", "report.plot=false", "logger=none"))
