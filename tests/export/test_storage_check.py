"""A pattern of a user's own that names no storage family is told before anything is trained."""

import pytest
from torch import nn

import sparsefront as sf

OWN = """
from sparsefront.patterns.element_wise import ElementWise

class Own(ElementWise):
    def storage(self, shape, sparsity):
        return {returned}
"""
THERE = r"families are blocked, .*, semi_structured$"
WRONG = {
    "unknown family": ('"csrr", {}', "'csrr', which is no storage family, for a layer of "),
    "no parameters": ('"csr"', "'csr', not a family and its parameters"),
    "nothing": ("None", "None, not a family and its parameters"),
    "parameter of no family": ('"csr", {"tile": 4}', r"\('csr', \{'tile': 4\}\), .* unexpected keyword argument"),
    "parameter missing": ('"gathered", {}', r"\('gathered', \{\}\), .* missing a required argument: 'tile'"),
}


def write(own_modules, returned: str) -> None:
    own_modules({"own_patterns.py": OWN.replace("{returned}", returned)})


@pytest.mark.parametrize(("returned", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("mixed", [False, True])
def test_storage_of_the_library(own_modules, returned, message, mixed):
    write(own_modules, returned)
    import own_patterns

    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    asked = {"pattern": own_patterns.Own()}
    if mixed:
        asked["pattern"] = sf.patterns.Mixed([{"_target_": "own_patterns.Own"}], sparsities=[0.5])
        asked["allocation"] = sf.allocation.LatencySearch(speedup=1.5)
    with pytest.raises(sf.InvalidSetting, match=f"^pattern=element_wise: its storage names {message}.*; {THERE}"):
        sf.prune(net, sparsity=0.5, tell=len, **asked)
    assert net[0].weight.all()
