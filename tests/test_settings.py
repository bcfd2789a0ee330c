"""Keys and types of a group are those of its class, also for keys added with +."""

from dataclasses import dataclass, field

import pytest
from omegaconf import OmegaConf

from sparsefront.errors import InvalidSetting
from sparsefront.settings import build_settings


@dataclass(frozen=True)
class Sample:
    count: int = 1
    rate: float = 0.5
    name: str | None = None
    size: int | str = 3
    flag: bool = False
    items: list[str] = field(default_factory=list)

    def __post_init__(self):
        if self.count < 1:
            raise InvalidSetting("count", self.count, "must be at least 1")


def build(**values):
    return build_settings("group", OmegaConf.create({"_target_": f"{__name__}.Sample", **values}))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__("types").ModuleType(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Sample", Sample, raising=False)


def test_good_values_arrive():
    built = build(count=2, rate=1, name="x", size="4x64", flag=True, items=["a"])
    assert built == Sample(2, 1, "x", "4x64", True, ["a"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cout": 2}, "group.cout=2: unknown key; group takes count, rate"),
        ({"count": "two"}, "group.count=two: must be a whole number"),
        ({"count": True}, "group.count=True: must be a whole number"),
        ({"rate": "fast"}, "group.rate=fast: must be a number"),
        ({"name": 3}, "group.name=3: must be text or null"),
        ({"size": 1.5}, "group.size=1.5: must be a whole number or text"),
        ({"items": "a"}, "group.items=a: must be a list of text"),
        ({"items": [1]}, "group.items=.*: must be a list of text"),
        ({"count": 0}, "group.count=0: must be at least 1"),
        ({"name": "${nowhere}"}, "nowhere"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InvalidSetting, match=message):
        build(**values)


@pytest.mark.parametrize("node", [None, OmegaConf.create({})])
def test_nothing_chosen_is_said(node):
    with pytest.raises(InvalidSetting, match="choose an option of the group"):
        build_settings("model", node)
