"""Every value that is optimized has a direction: the field's own, or the one that is written before it."""

import pytest

from sparsefront.config.settings import field_of
from sparsefront.errors import InvalidSetting
from sparsefront.search.space import Objective, objective


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
def test_a_direction_that_is_missing_or_unknown_is_one_line(text, message):
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        objective(text)
