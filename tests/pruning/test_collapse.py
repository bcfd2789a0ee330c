"""Layers that pruning emptied are found, named, and said with the settings that help."""

import pytest

from sparsefront.pruning.collapse import collapse_warning, select_collapsed


@pytest.mark.parametrize(
    ("sparsity", "target", "collapsed"),
    [
        (1.0, 0.75, True),
        (0.976, 0.75, True),  # 0.024 of 0.25: less than a tenth
        (0.974, 0.75, False),
        (0.974, 0.5, True),
        (0.985, 0.9, False),  # 0.015 of 0.1
        (0.992, 0.9, True),
        (0.991, 0.95, True),  # 0.009 of 0.05: less than 1 %
        (0.989, 0.95, False),
        (0.991, 0.99, False),  # 0.009 of 0.01: near its share
        (0.996, 0.99, True),
        (0.0, 0.0, False),
        (1.0, 0.0, True),
    ],
)
def test_collapsed_layers_by_density(sparsity, target, collapsed):
    found = select_collapsed({"fc1": 0.3, "fc2": sparsity}, target)
    assert found == ({"fc2": pytest.approx(1 - sparsity)} if collapsed else {})


def test_warning_names_layers_and_settings():
    sparsities = {"blocks.0.fc1": 0.5, "blocks.0.fc2": 1.0, "blocks.1.fc2": 0.99}
    warning = collapse_warning(sparsities, 0.75, "global_threshold")
    assert warning.startswith(
        "2 of 3 layers collapsed at target density 0.25: blocks.0.fc2 lost every weight, blocks.1"
    )
    assert "allocation=per_layer, or allocation=global_threshold allocation.min_density_share=" in warning
    assert "\n" not in warning
    assert collapse_warning({"blocks.0.fc1": 0.9}, 0.75, "global_threshold") is None
