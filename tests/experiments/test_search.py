"""The tables of experiments/search pair the search with single patterns."""

from pathlib import Path

import numpy as np
import pytest

from sparsefront.tasks.outcomes import Outcomes

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "search"


def row(choice: str, level: str, seed: int, latency: float, accuracy: float, **cells: str) -> dict[str, str]:
    measured = {"latency_sparse_ms": latency, "latency_predicted_ms": latency * 1.04, "sparse": accuracy}
    measured |= {"val_sparse": accuracy, "latency_dense_ms": 2.0, "dense": 0.95, "dense_continued": 0.96}
    measured |= {f"speedup{end}": 2.0 / latency + width for end, width in (("", 0), ("_low", -0.1), ("_high", 0.1))}
    measured |= {"prune_seconds": 60.0}
    named = {"choice": choice, "level": level, "seed": str(seed), "metric_name": "accuracy"}
    return named | {name: str(value) for name, value in measured.items()} | cells


def cells_of(table: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_search_beside_the_best_pattern(modules):
    rows = [row("search", "2", seed, 1.0, 0.94) for seed in (0, 1)]
    rows += [row("n_m", "0.75", seed, 1.01, 0.90 + 0.02 * seed) for seed in (0, 1)]
    rows += [row("n_m", "0.5", 0, 1.5, 0.95), row("tile_wise:64", "0.9", 0, 0.8, 0.85)]
    (cells,) = cells_of(modules["summary"].table(rows))
    assert cells[:5] == ["2", "2", "2.00 (1.90–2.10)", "+4.0%", "94.00%"]
    assert cells[5:10] == ["n_m at 0.75", "1.98", "91.00%", "+3.00", "–"]
    wide = [row | {"val_dense_continued": "0.95"} for row in rows]
    everything = cells_of(modules["summary"].all_choices(wide))
    assert [cells[0] for cells in everything] == ["tile_wise:64", "search", "n_m", "n_m"]
    speedup = "1.98 (1.88–2.08)"
    assert everything[2] == ["n_m", "0.75", "2", "1.010", speedup, "91.00 % ± 1.41", "-4.00", "91.00 % ± 1.41", "-5.00"]
    assert cells[10:] == ["96.00%", "60%", "60"]  # (4 + 2) of the 6 + 4 points that the single pattern loses


def test_gain_is_paired_over_samples(modules):
    rows = [row("search", "2", seed, 1.0, 0.9, run_id=f"ours{seed}") for seed in (0, 1)]
    rows += [row("n_m", "0.75", seed, 1.0, 0.8, run_id=f"theirs{seed}") for seed in (0, 1)]
    rows.append(row("search", "3", 0, 0.5, 0.7, run_id="alone"))  # nothing is as fast
    rows.append(row("search", "1.5", 0, 1.2, 0.9, run_id="kept"))  # its single pattern's outcomes are not
    right = {f"ours{seed}": [1] * 9 + [0] for seed in (0, 1)} | {f"theirs{seed}": [0] * 2 + [1] * 8 for seed in (0, 1)}

    def outcomes_of(run_id):
        if run_id not in right:
            return None
        return Outcomes("accuracy", np.array(right[run_id], dtype=np.uint8), None, "the same")

    (line,) = found = modules["summary"].pairs(rows, outcomes_of)
    assert (line["level"], line["seeds"]) == ("2", "2") and float(line["difference"]) == pytest.approx(0.1)
    low, high = float(line["low"]), float(line["high"])
    assert -0.35 <= low < 0.1 < high <= 0.55  # it loses the last sample and gains the first two
    (without, searched, _) = modules["summary"].table(rows, found)[2:]
    assert "| +10.00 |" in without, "no interval where outcomes are not kept"
    assert f"| +10.00 ({100 * low:+.2f} to {100 * high:+.2f}) |" in searched
