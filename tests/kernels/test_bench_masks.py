"""A benchmark run on masks that a pattern makes: pruned outputs, their density, what is compact, peers on the same mask."""

import dataclasses

import pytest
import torch
from bench_stand_ins import measure, no_gpu, peer_providers, plan, widths_tunable  # noqa: F401  (fixtures)
from sparsefront_kernels.bench import run
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.masks import PATTERN, MaskedWeight, Masks
from sparsefront_kernels.bench.measurement import Rates, roofline_bound_us


@dataclasses.dataclass(frozen=True)
class PrunedOutputs:
    """Masks as a pattern may make them: every third output is pruned, and the last tile is narrow and keeps all inputs."""

    granularity: int
    keep: int = 3
    compact: bool = False
    pattern: str = "tile_wise"

    @property
    def settings(self) -> str:
        return f"keep={self.keep}" + (" compact=true" if self.compact else "")

    def draw(self, n, k, sparsity, device):
        mask = torch.zeros(n, k, dtype=torch.bool)
        alive = [row for row in range(n) if row % 3]
        for start in range(0, len(alive), self.granularity):
            tile = alive[start : start + self.granularity]
            mask[tile, : k if len(tile) < self.granularity else self.keep] = True
        return MaskedWeight(
            torch.randn(n, k), mask, {"gathered": {"tile": self.granularity, "drop_empty_outputs": True}}, self.compact
        )


def patterns(**settings):
    return {
        "distributions": (PATTERN,),
        "masks": Masks(family_masks("gathered"), PrunedOutputs, settings),
        "granularities": (12,),
    }


def test_patterns_masks_at_their_own_density():
    rows = [row for row in measure(plan(sparsities=(0.5,), peers=(), **patterns())) if row.family == "gathered"]
    kept = (2 * 12 * 3 + 8 * 32) / (48 * 32)  # two tiles of 12 outputs and one of 8
    assert len(rows) == 5 and all(row.correct for row in rows)
    for row in rows:
        assert (row.pattern, row.distribution, row.mask_settings) == ("tile_wise", "pattern", "keep=3")
        assert row.sparsity == pytest.approx(1 - kept) and row.asked_sparsity == 0.5
        assert row.predicted_us is None
        rates = Rates(100.0, 1000.0)
        weight_bytes = 4 * kept * 48 * 32 + 4 * (2 * 3 + 32) + 8 * 4 + 4 * 32  # values, inputs, offsets, outputs
        roofline_us = roofline_bound_us(
            6, 32, 48, density=kept, weight_bytes=weight_bytes, element_bytes=4, rates=rates
        )
        assert row.roofline_fraction == pytest.approx(roofline_us / row.latency_us)


def test_compact_product_skips_pruned_outputs(monkeypatch):
    products, checks = [], []
    providers = run.our_providers

    def seen(drawn, **wanted):
        found = providers(drawn, **wanted)
        products.append(drawn.setting.problem("feature_major"))
        checks.extend(
            tuple(one.provider.calls(1)[0]().shape) for one in found if one.provider.layout == "feature_major"
        )
        return found

    monkeypatch.setattr(run, "our_providers", seen)
    rows = [row for row in measure(plan(sparsities=(0.5,), peers=(), **patterns(compact=True))) if row.granularity]
    assert [(problem.m, problem.k, problem.n) for problem in products] == [(6, 32, 32)], (
        "of 48 outputs every third is gone"
    )
    assert checks and set(checks) == {(32, 6)}
    kept = (2 * 12 * 3 + 8 * 32) / (48 * 32)
    for row in rows:
        assert row.correct and row.mask_settings == "keep=3 compact=true"
        assert (row.n, row.sparsity) == (48, pytest.approx(1 - kept)), (
            "beside the whole product, and of the whole weight"
        )
        weight_bytes = 4 * kept * 48 * 32 + 4 * (2 * 3 + 32) + 8 * 4 + 4 * 32
        less = roofline_bound_us(
            6, 32, 32, density=kept * 48 / 32, weight_bytes=weight_bytes, element_bytes=4, rates=Rates(100.0, 1000.0)
        )
        assert row.roofline_fraction == pytest.approx(less / row.latency_us)
