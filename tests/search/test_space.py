"""The space of a search: what Hydra's overrides become; and its objectives with their directions."""

import re

import pytest

pytest.importorskip("optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra `sweep`")

from sparsefront.config.settings import field_of
from sparsefront.errors import InvalidSetting
from sparsefront.search.space import Objective, in_overrides, objective, parse_space

SPACE = ["sparsity=interval(0.5,0.95)", "pattern=n_m,tile_wise", "granularity=range(8,65,8)", "seed=3"]


def test_space():
    space, fixed = parse_space([*SPACE, "recipe.lr=tag(log, interval(1e-4,1e-2))", "recipe.epochs=int(interval(1,9))"])
    assert fixed == ["seed=3"] and set(space) == {"sparsity", "pattern", "granularity", "recipe.lr", "recipe.epochs"}
    assert space["pattern"].choices == ("n_m", "tile_wise")
    assert (space["granularity"].low, space["granularity"].high, space["granularity"].step) == (8, 64, 8)
    assert space["recipe.lr"].log and not space["sparsity"].log and isinstance(space["recipe.epochs"].high, int)
    assert in_overrides(space)["recipe.epochs"] == "int(interval(1,9))"
    assert in_overrides(space)["recipe.lr"] == "tag(log,interval(0.0001,0.01))"
    with pytest.raises(InvalidSetting, match="nothing to search among: give a space"):
        parse_space(["seed=3"])


@pytest.mark.parametrize(
    ("text", "choices"),
    [("range(0.5,2.5,1)", (0.5, 1.5)), ("range(0,2,0.5)", (0.0, 0.5, 1.0, 1.5)), ("range(10,0,-4)", (10, 6, 2))],
)
def test_other_ranges_have_categories(text, choices):
    space, _ = parse_space([f"recipe.weight_decay={text}"])
    assert space["recipe.weight_decay"].choices == choices


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("interval(0.9,0.5)", "must be finite numbers, the smaller one first"),
        ("interval(0,inf)", "must be finite numbers, the smaller one first"),
        ("tag(log,interval(0,1e-2))", "must begin above 0, as by a logarithm"),
        ("tag(log,int(interval(0,9)))", "must begin above 0, as by a logarithm"),
        ("tag(log,range(1,9))", "goes by a logarithm as an interval"),
        ("range(10,0)", "holds no number"),
        ("range(0,10,0)", "holds no number"),
        ("glob(*)", "cannot be searched: write the options out"),
    ],
)
def test_space_without_values_is_rejected(text, allowed):
    with pytest.raises(InvalidSetting, match=re.escape(f"recipe.lr={text}: {allowed}")):
        parse_space([f"recipe.lr={text}"])


@pytest.mark.parametrize(
    ("text", "name", "direction"),
    [
        ("sparse", "sparse", "maximize"),
        ("val_sparse", "val_sparse", "maximize"),
        ("speedup", "speedup", "maximize"),
        ("latency_sparse_ms", "latency_sparse_ms", "minimize"),
        ("weight_bytes_sparse", "weight_bytes_sparse", "minimize"),
        ("recover_seconds", "recover_seconds", "minimize"),
        ("minimize:speedup", "speedup", "minimize"),
        ("maximize:batch_size", "batch_size", "maximize"),
    ],
)
def test_directions(text, name, direction):
    assert objective(text) == Objective(name, direction) and field_of(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size", "optimize=batch_size: does not tell which end is better: write maximize:batch_size or minimize"),
        ("up:sparse", "optimize=up:sparse: is written as maximize:sparse or minimize:sparse"),
    ],
)
def test_unknown_direction_is_rejected(text, message):
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        objective(text)
