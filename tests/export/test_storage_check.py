"""A pattern of a user's own that names no storage family is told before anything is trained."""

import pytest
from torch import nn

import sparsefront as sf
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

OWN = """
from sparsefront.patterns.element_wise import ElementWise

class Own(ElementWise):
    def storage(self, shape, sparsity):
        return {returned}
"""
THERE = r"families are dense, gathered, .*, ell, csr$"
WRONG = {
    "unknown family": ('"csrr", {}', "'csrr', which is no storage family, for a layer of "),
    "no parameters": ('"csr"', "'csr', not a family and its parameters"),
    "nothing": ("None", "None, not a family and its parameters"),
    "parameter of no family": (
        '"csr", {"tile": 4}',
        r"\('csr', \{'tile': 4\}\), .* unexpected keyword argument 'tile'",
    ),
    "parameter missing": ('"gathered", {}', r"\('gathered', \{\}\), .* missing a required argument: 'tile'"),
}


@pytest.fixture(params=WRONG.values(), ids=WRONG)
def message(request, own_modules) -> str:
    returned, said = request.param
    own_modules({"own_patterns.py": OWN.replace("{returned}", returned)})
    return f"^pattern=element_wise: its storage names {said}.*; {THERE}"


def test_storage_of_a_run(composed, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("pattern=element_wise", "pattern._target_=own_patterns.Own"))


@pytest.mark.parametrize("mixed", [False, True])
def test_storage_of_the_library(message, mixed):
    import own_patterns

    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    given = {"pattern": own_patterns.Own()}
    if mixed:
        given["pattern"] = sf.patterns.Mixed([{"_target_": "own_patterns.Own"}], sparsities=[0.5])
        given["allocation"] = sf.allocation.LatencySearch(speedup=1.5)
    with pytest.raises(sf.InvalidSetting, match=message):
        sf.prune(net, sparsity=0.5, tell=len, **given)
    assert net[0].weight.all()
