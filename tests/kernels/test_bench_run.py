"""A benchmark run from plan to file, on a CPU: the reference stands in for GPU kernels, and a counter for the clock."""

import pytest
from bench_stand_ins import CPU, ODD, SMALL, Launch, measure, no_gpu, peer_providers, plan, widths_tunable  # noqa: F401  (fixtures)
from sparsefront_kernels.bench import run
from sparsefront_kernels.bench.peers import Peer
from sparsefront_kernels.bench.rows import Results, read_rows
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.problem import LAYOUTS


def test_every_layout_is_measured():
    rows = measure(plan())
    assert all(row.correct for row in rows)
    dense = [row for row in rows if row.family == "dense" and row.dtype == "fp32"]
    assert {row.layout for row in dense} == set(LAYOUTS) and len(dense) == 8
    best = min(row.latency_us for row in dense)
    sparse = [row for row in rows if row.kernel.startswith("fake")]
    assert {row.layout for row in sparse} == set(LAYOUTS)
    assert len(sparse) == 2 * 2 * 5 and {row.asked_sparsity for row in sparse} == {0.5, 0.75}
    assert all(row.dense_us == best and row.speedup == best / row.latency_us for row in sparse)
    assert all(row.baseline == "peer 8" and row.samples == 20 for row in sparse)
    assert len([row for row in rows if row.kernel == "peer"]) == 2, "one of its settings at each sparsity"


def test_a_peer_that_fails_is_named(monkeypatch):
    def fails(setting):
        raise NotImplementedError("no such product\nwith a second line")

    monkeypatch.setattr(run, "PEERS", {"peer": Peer(fails, lambda dtype, sparsity: "no" if sparsity == 0.75 else None)})
    said = []
    rows = measure(plan(), said=said)
    assert "small fp32 peer cannot run: no such product" in said
    assert "fp32 peer is left out: no" in said
    assert {row.baseline for row in rows} == {""}


def test_rows_are_on_disk_early(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"

    def killed(setting):
        if setting.sparsity == 0.75:
            raise KeyboardInterrupt
        return peer_providers(setting)

    monkeypatch.setattr(run, "PEERS", {"peer": Peer(killed, lambda dtype, sparsity: None)})
    with pytest.raises(KeyboardInterrupt):
        measure(plan(), path)
    held = read_rows(path)
    assert {row["asked_sparsity"] for row in held} == {"0", "0.5"}
    assert all(row["speedup"] for row in held)
    monkeypatch.setattr(run, "PEERS", {"peer": Peer(peer_providers, lambda dtype, sparsity: None)})
    new = measure(plan(), path)
    assert {row.asked_sparsity for row in new} == {0.75}, "what the file holds is not measured again"
    rows = read_rows(path)
    assert len(rows) == len(held) + len(new)
    keys = [tuple(row[name] for name in ("kernel", "granularity", "dtype", "asked_sparsity")) for row in rows]
    assert len(set(keys)) == len(keys)
    said = []
    assert measure(plan(), path, said=said) == [] and said[-1] == "small fp32: measured before"


def test_each_launch_is_timed_once(tunable):
    kept = []
    measure(plan(granularities=(8,), sparsities=(0.5,), tune=True), kept=kept)
    assert [(layout, width) for layout, width, _ in tunable.log] == [("feature_major", width) for width in (1, 2, 3, 2)]
    assert tunable.log[-1][2] > 0, "the fastest is remembered with its time"
    assert kept == [["fake"]]


def test_wrong_launch_is_an_error(tunable):
    """The kernel has no row, and the others are measured all the same."""
    tunable.wrong = 3
    said = []
    measuring = Run(Results.opened(None, gpu="Some GPU", commit="abc", append=False), said.append)
    measuring.measure(plan(granularities=(8,), sparsities=(0.5,), tune=True))
    (error,) = measuring.errors
    assert "wrong products on Problem(" in error and "by Launch(width=3) (relative error 1)" in error
    assert f"ERROR: {error}" in said
    assert tunable.now == Launch(2), "a right one is remembered"
    assert {row.kernel for row in measuring.rows if row.family == "gathered"} == {"fake_even"}


def test_a_wrong_product_has_no_time(tunable):
    tunable.wrong = 1
    rows = measure(plan(granularities=(8,), sparsities=(0.5,), peers=()))
    wrong = [row for row in rows if not row.correct]
    assert {row.kernel for row in wrong} >= {"fake"}
    assert all(row.latency_us is None and row.speedup is None and row.samples is None for row in wrong)
