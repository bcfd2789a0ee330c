"""Keys and types of a group are those of its class, also for keys added with +."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from omegaconf import OmegaConf
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from sparsefront.config.settings import build_settings
from sparsefront.data.base import Dataset
from sparsefront.errors import InvalidSetting


@dataclass(frozen=True)
class Sample:
    count: int = 1
    rate: float = 0.5
    name: str | None = None
    rates: list[float] = field(default_factory=list)

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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cout": 2}, "group.cout=2: unknown key; did you mean count\\? group takes count, rate"),
        ({"rate": float("nan")}, "^group.rate=nan: must be a finite number"),
        ({"rates": [0.5, float("-inf")]}, r"^group.rates=\[0.5, -inf\]: must be a finite number"),
        ({"count": 0}, "group.count=0: must be at least 1"),
        ({"name": "${nowhere}"}, r"^group.name=\${nowhere}: .*'nowhere' not found"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InvalidSetting, match=message):
        build(**values)


@pytest.mark.parametrize("node", [None, OmegaConf.create({}), OmegaConf.create({"kind": "x"})])
def test_option_without_class(node):
    with pytest.raises(
        InvalidSetting, match="^pattern=strips: its file lacks the line `_target_: package.module.Class`"
    ):
        build_settings("pattern", node, "strips")


@dataclass(frozen=True, kw_only=True)
class OwnStripes(Dataset):
    """A user's plain dataclass below a settings class of ours."""

    path: Path = Path("data")
    sizes: tuple[int, ...] = (1,)
    scale: Annotated[float, Field(gt=0)] = 1.0

    info = check = content = data_module = name = None


@pydantic_dataclass(frozen=True)
class OwnChecked:
    """A user's class that pydantic checks."""

    count: PositiveInt = 1

    def __post_init__(self):
        if self.count == 7:
            raise ValueError("never 7")


def built_from(target, **values):
    return build_settings("pattern", OmegaConf.create({"_target_": target, **values}))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "nowhere.patterns.Striped",
            "cannot be imported .ModuleNotFoundError: No module named 'nowhere'.; name a class as package.module",
        ),
        ("sparsefront.patterns.dense.Dence", "module 'sparsefront.patterns.dense' has no attribute 'Dence'"),
        ("Dense", "package.module.Class"),
        ("sparsefront.patterns", "is no class"),
        ("os.getcwd", "is no class"),
        (3, "must be the full name of a class"),
        ("sparsefront.patterns.base.Pattern", "does not define rounding_unit, steps, storage, name, which pattern"),
    ],
)
def test_missing_class_is_one_line(target, reason, caplog):
    with pytest.raises(InvalidSetting, match=f"^pattern._target_={target}: .*{reason}") as rejected:
        built_from(target)
    assert "\n" not in str(rejected.value)
    assert not caplog.records, "the message is the only line"


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (OwnStripes, {"valid_fraction": 0.7}, r"^dataset\.valid_fraction=0\.7: must be less than"),
        (OwnStripes, {"scale": 0}, r"^dataset\.scale=0: must be greater than 0$"),
        (OwnStripes, {"sizes": [1, "two"]}, r"^dataset\.sizes=\[1, 'two'\]: must be a valid integer$"),
        (OwnChecked, {"count": 0}, r"^dataset\.count=0: must be greater than 0$"),
    ],
    ids=str,
)
def test_ranges_hold_for_own_classes(monkeypatch, kind, values, message):
    import sys

    monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
    node = {"_target_": f"{__name__}.{kind.__name__}"}
    with pytest.raises(InvalidSetting, match=message):
        build_settings("dataset", OmegaConf.create({**node, **values}))
    if kind is OwnStripes:
        built = build_settings("dataset", OmegaConf.create({**node, "path": "x", "sizes": [2, 3], "num_workers": 1}))
        assert (built.path, built.sizes, built.num_workers) == (Path("x"), (2, 3), 1)
    else:
        with pytest.raises(ValueError, match="never 7"):
            build_settings("dataset", OmegaConf.create({**node, "count": 7}))
