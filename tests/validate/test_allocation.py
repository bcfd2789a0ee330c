"""Allocations that a pattern cannot meet, or a table of latencies does not allow, are rejected before any training."""

from pathlib import Path

import pytest

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

REJECTED = {
    "impossible allocation": (
        ["pattern=n_m", "allocation=global_threshold"],
        "allocation=global_threshold: pattern n_m can meet latency_aware, per_layer",
    ),
    "key of another allocation": (
        ["allocation.min_density_share=0.2"],
        r"^allocation\.min_density_share=0\.2: unknown key of allocation=per_layer; choose allocation=global_threshold",
    ),
    "key of no allocation": (
        ["allocation.floor=0.2"],
        r"allocation\.floor=0\.2: unknown key; allocation takes no keys",
    ),
    "share above 1": (
        ["allocation=global_threshold", "allocation.min_density_share=2"],
        r"allocation\.min_density_share=2: must be a number from 0 to 1 \(of the target density\)",
    ),
    "latency_aware without a table": (
        ["allocation=latency_aware"],
        r"allocation\.table=None: .*run\.py -m sparsity=.*sparsefront\.results\.latency_table",
    ),
    "latency_aware with a table that is not there": (
        ["allocation=latency_aware", "allocation.table=/nowhere.csv"],
        r"allocation\.table=/nowhere\.csv: is no file",
    ),
    "latency_aware without a speedup": (["allocation=latency_aware", "allocation.speedup=1"], r"allocation\.speedup=1"),
    "erk with windows": (
        ["pattern=n_m", "allocation=erk"],
        "allocation=erk: pattern n_m can meet latency_aware, per_layer",
    ),
    "several patterns under an allocation of one": (
        ["pattern=mixed"],
        "^allocation=per_layer: pattern mixed can meet latency_search; per_layer gives every layer the same pattern$",
    ),
    "a search among one pattern": (
        ["pattern=n_m", "allocation=latency_search", "allocation.speedup=2"],
        "^allocation=latency_search: pattern n_m can meet .*chooses among the candidates of pattern mixed",
    ),
    "a search without a latency": (
        ["pattern=mixed", "sparsity=0.95", "allocation=latency_search"],
        r"^allocation\.latency_ms=None: milliseconds of one batch, or allocation\.speedup",
    ),
    "a search for two latencies": (
        ["pattern=mixed", "allocation=latency_search", "allocation.speedup=2", "allocation.latency_ms=1"],
        r"^allocation\.latency_ms=1.*not with allocation\.speedup",
    ),
    "a search under a ceiling below all levels": (
        ["pattern=mixed", "sparsity=0.4", "allocation=latency_search", "allocation.speedup=2"],
        r"^sparsity=0\.4: is the ceiling of pattern\.sparsities",
    ),
    "a search that swaps nothing in": (
        ["pattern=mixed", "allocation=latency_search", "allocation.speedup=2", "kernel=none"],
        "^kernel=none: swaps no kernel in",
    ),
    "candidate that is none": (
        ["pattern=mixed", "pattern.candidates=[n_m,tiles]", "allocation=latency_search", "allocation.speedup=2"],
        r"^pattern\.candidates=tiles: name=tiles: is no pattern",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


def write_times(folder: Path, layers: list[str], levels: tuple[float, ...] = (0, 0.5, 0.75)) -> str:
    """The override for a table in which time falls as density does."""
    times = [f"{layer},{level},{8 * (1 - level)}" for layer in layers for level in levels]
    (folder / "table.csv").write_text("\n".join(["layer,sparsity,latency_us", *times]) + "\n")
    return f"allocation.table={folder / 'table.csv'}"


def test_a_table_of_other_layers_and_a_speedup_out_of_reach(composed, tmp_path):
    latency_aware = ["pattern=n_m", "sparsity=0.75", "allocation=latency_aware"]
    with pytest.raises(InvalidSetting, match=r"allocation\.table=.*no times of layer blocks\.0\.attn\.q"):
        validate(composed(*latency_aware, write_times(tmp_path, ["fc"])))
    experiment = validate(composed(*latency_aware[:2], "allocation=per_layer"))
    net = experiment.model.skeleton(experiment.dataset.info)
    table = write_times(tmp_path, experiment.model.prunable(net))
    validate(composed(*latency_aware, table, "allocation.speedup=4"))
    with pytest.raises(InvalidSetting, match=r"allocation\.speedup=5(\.0)?: out of reach.*allow 4\.000 at most"):
        validate(composed(*latency_aware, table, "allocation.speedup=5"))
    with pytest.raises(InvalidSetting, match=r"allocation\.speedup=4.*sparsity=0\.5, the ceiling, allow 2\.000"):
        validate(composed("pattern=n_m", "sparsity=0.5", "allocation=latency_aware", table, "allocation.speedup=4"))
    table = write_times(tmp_path, experiment.model.prunable(net), levels=(0, 0.6))
    with pytest.raises(InvalidSetting, match=r"allocation\.table=.*at sparsity 0\.6, which n_m cannot express: m=4: "):
        validate(composed(*latency_aware, "pattern.m=4", table))
