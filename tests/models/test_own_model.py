"""A user's own model needs what the abstract class says, and nothing else."""

from pathlib import Path

import pytest

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

MODEL = """
import torch
from torch import nn
from sparsefront.models.base import Model


class Net(nn.Module):
    def __init__(self, info):
        super().__init__()
        self.first = nn.Linear(info.channels * info.image_size**2, 128)
        self.second, self.head = nn.Linear(128, 128), nn.Linear(128, info.num_classes)

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


class Own(Model):
    kinds = ("image_classification",)

    def check(self):
        pass

    def fingerprint(self):
        return {"model": "own"}

    def build(self, info):
        return Net(info)

    def skeleton(self, info):
        with torch.device("meta"):
            return Net(info)

    def prunable(self, net):
        return ["first", "second"]
"""


@pytest.fixture
def own(own_modules) -> str:
    own_modules({"own_model.py": MODEL})
    return "own_model"


@pytest.fixture
def searched(tmp_path: Path) -> str:
    options = tmp_path / "conf" / "model"
    options.mkdir(parents=True)
    (options / "own.yaml").write_text("_target_: own_model.Own\n")
    return f"hydra.searchpath=[file://{options.parent}]"


def test_a_whole_run(run, own: str, searched: str):
    row = run(searched, "model=own", "recipe=default", "trainer=cpu", "measure.device=cpu")
    assert set(row.sparsity.sparsity_per_layer) == {"first", "second"}
    assert row.choice.model_parameters == {}


THERE = r"there are first, second, head$"
WRONG = {
    "a string": ("'first'", r"^model\._target_=own_model\.Own: prunable returns 'first', where it returns a list"),
    "nothing": ("None", r"^model\._target_=own_model\.Own: prunable returns None, where it returns a list of names"),
    "no such layer": ("['first', 'third']", rf"^model\._target_=own_model\.Own: prunable names 'third', .*; {THERE}"),
    "the network": ("['']", rf"^model\._target_=own_model\.Own: prunable names '', .*; {THERE}"),
    "modules": ("[net.first]", r"^model\._target_=own_model\.Own: prunable names Linear\(.* is no Linear"),
    "twice": ("['first', 'second', 'first']", r"^model\._target_=own_model\.Own: prunable names 'first' twice$"),
}


@pytest.mark.parametrize(("returned", "message"), WRONG.values(), ids=WRONG)
def test_layers_that_cannot_be_pruned(composed, own_modules, searched, returned, message):
    own_modules({"own_model.py": MODEL.replace('["first", "second"]', returned)})
    for pattern in ("element_wise", "dense") if returned == "None" else ("element_wise",):
        with pytest.raises(InvalidSetting, match=message):
            validate(composed(searched, "model=own", "recipe=default", f"pattern={pattern}"))
