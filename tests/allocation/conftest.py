"""Tables of layer times made up for the tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sparsefront.allocation.latency_aware import LayerTime, write_table


@pytest.fixture
def table_of(tmp_path: Path) -> Callable[..., str]:
    """table_of({layer: {sparsity: microseconds}}, **cells of every line) -> the path of such a table."""

    def make(times: Mapping[str, Mapping[float, float]], **cells: str) -> str:
        lines = [
            LayerTime(layer, level, latency_us, **cells)
            for layer, levels in times.items()
            for level, latency_us in levels.items()
        ]
        write_table(tmp_path / "table.csv", lines)
        return str(tmp_path / "table.csv")

    return make
