"""Settings classes: what they take, what they reject, in which words, and that they stay plain dataclasses."""

import dataclasses
import inspect
import pickle
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import Expression, Fraction, ListOf, OneOrMore, Share, settings_class

Size = Annotated[int, Field(ge=2, le=64)]


@settings_class()
class Sample:
    count: PositiveInt = 1
    rate: PositiveFloat | None = None
    rest: NonNegativeInt = 0
    warmup: Annotated[Fraction, Field(description="of the steps")] = 0.1
    share: Share = 0.5
    over: Annotated[float | None, Field(gt=1)] = None
    mode: Literal["a", "b", "c"] = "a"
    window: Annotated[Size | None, Field(description="null: chosen")] = None
    sizes: PositiveInt | OneOrMore[PositiveInt] = 1
    modes: OneOrMore[Literal["x", "y"]] = dataclasses.field(default_factory=lambda: ["x"])
    ignore: ListOf[Expression] = dataclasses.field(default_factory=list)
    flag: bool = False

    name: ClassVar[str] = "sample"

    def __post_init__(self):
        if self.rest > self.count:
            raise InvalidSetting("rest", self.rest, f"at most count={self.count}")


LINES = [
    ({"count": 0}, "count=0: must be greater than 0"),
    ({"count": True}, "count=True: must be a valid integer"),
    ({"count": "1"}, "count=1: must be a valid integer"),
    ({"rate": True}, "rate=True: must be a valid number"),
    ({"warmup": 1.0}, "warmup=1.0: must be less than 1 (of the steps)"),
    ({"over": 0.5}, "over=0.5: must be greater than 1"),
    ({"share": float("nan")}, "share=nan: must be a finite number"),
    ({"mode": "d"}, "mode=d: must be 'a', 'b' or 'c'"),
    ({"window": 65}, "window=65: must be less than or equal to 64 (null: chosen)"),
    ({"sizes": []}, "sizes=[]: must be a valid integer or must have at least 1 item after validation, not 0"),
    ({"modes": ["x", "z"]}, "modes=['x', 'z']: must be 'x' or 'y'"),
    ({"ignore": "a"}, "ignore=a: must be a valid list"),
    ({"flag": 1}, "flag=1: must be a valid boolean"),
    ({"rest": 2}, "rest=2: at most count=1"),
]


@pytest.mark.parametrize(("values", "line"), LINES, ids=str)
def test_line_names_key_value_and_allowed(values, line):
    with pytest.raises(InvalidSetting) as rejected:
        Sample(**values)
    assert (str(rejected.value), rejected.value.key) == (line, next(iter(values)))


def test_integers_and_tuples_are_converted():
    made = Sample(rate=2, sizes=(8, 1))
    assert made.rate == 2.0 and isinstance(made.rate, float)
    assert made.sizes == [8, 1]


def test_it_stays_a_frozen_dataclass():
    made = Sample(4)
    assert dataclasses.asdict(made)["count"] == 4
    assert [field.name for field in dataclasses.fields(Sample)] == list(inspect.signature(Sample).parameters)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(InvalidSetting, match="^count=-1: "):
        dataclasses.replace(made, count=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.count = 5


def test_classes_of_keywords():
    @settings_class(kw_only=True)
    class Base:
        workers: NonNegativeInt = 0

    @settings_class(kw_only=True)
    class Derived(Base):
        path: str

    assert Derived(path="x") == Derived(path="x", workers=0)
    assert hash(Derived(path="x")) == hash(Derived(path="x"))
    with pytest.raises(InvalidSetting, match="^workers=-1: must be greater than or equal to 0$"):
        Derived(path="x", workers=-1)
    with pytest.raises(TypeError, match="path"):
        Derived()
