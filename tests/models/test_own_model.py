"""A user's own model needs what the abstract class says, and nothing else."""

import sys
from pathlib import Path

import pytest

from sparsefront.models.base import Model

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


def test_the_class_has_every_abstract_method_and_no_more(own: str):
    __import__(own)
    kind = sys.modules[own].Own
    defined = {name for name in vars(kind) if not name.startswith("_")}
    assert defined == {*Model.__abstractmethods__, "kinds"}


def test_a_whole_run(run, own: str, tmp_path: Path):
    options = tmp_path / "conf" / "model"
    options.mkdir(parents=True)
    (options / "own.yaml").write_text("_target_: own_model.Own\n")
    searched = f"hydra.searchpath=[file://{options.parent}]"
    row = run(searched, "model=own", "recipe=default", "trainer=cpu", "measure.device=cpu")
    assert set(row.sparsity.sparsity_per_layer) == {"first", "second"}
    assert row.choice.model_parameters == {}
