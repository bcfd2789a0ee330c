"""A benchmark run from plan to file, on a CPU: the reference stands in for GPU kernels, and a counter for the clock."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from bench_stand_ins import CPU, ODD, SMALL, Launch, measure, no_gpu, peer_providers, plan, widths_tunable  # noqa: F401  (fixtures)
from sparsefront_kernels import registry
from sparsefront_kernels.bench import ours, run
from sparsefront_kernels.bench.peers import Peer
from sparsefront_kernels.bench.plan import Chosen
from sparsefront_kernels.bench.provider import copied, numbered
from sparsefront_kernels.bench.rows import COLUMNS, Results, read_rows
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.problem import LAYOUTS, Problem
from sparsefront_kernels.tuning import TunedLaunches, store


@dataclass(frozen=True)
class Described:
    shape: str
    amount: float = 1.0


def test_every_layout_is_measured_beside_dense_and_peer():
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


def test_both_dense_baselines_of_fp32_are_in_the_file():
    rows = measure(plan())
    rounded = [row for row in rows if row.dtype == "tf32"]
    assert len(rounded) == 8 and {row.family for row in rounded} == {"dense"}
    assert len({row.dense_us for row in rounded}) == 1 and rounded[0].dense_us not in {
        row.dense_us for row in rows if row.dtype == "fp32"
    }


def test_plans_of_one_run_share_a_dense_time(monkeypatch):
    shapes = []
    timed = Run._timed_dense
    monkeypatch.setattr(Run, "_timed_dense", lambda self, *asked: shapes.append(asked) or timed(self, *asked))
    measuring = Run(Results.opened(None, gpu="Some GPU", commit="abc", append=True), lambda line: None)
    for granularity in (8, 16):
        measuring.measure(plan(dtypes=("fp16",), granularities=(granularity,)))
    assert shapes == [(SMALL, "fp16")]
    assert len({row.dense_us for row in measuring.rows if row.kernel.startswith("fake")}) == 1
    measuring.measure(plan(dtypes=("fp16",), granularities=(4,), chosen=Chosen((), LAYOUTS[:1])))
    assert len(shapes) == 2, "of other layouts"


def test_tf32_is_measured_on_tf32_kernels_only():
    rows = measure(plan(dtypes=("fp32", "tf32"), peers=()))
    names = {dtype: {row.kernel for row in rows if row.dtype == dtype} for dtype in ("fp32", "tf32")}
    assert "fake_tf32" in names["tf32"] and "fake_even" not in names["tf32"]
    assert "fake_tf32" not in names["fp32"] and "fake_even" in names["fp32"]
    assert len([row for row in rows if row.dtype == "tf32" and row.family == "dense"]) == 8, "measured once"


def test_unsupported_kernels_are_logged():
    said = []
    rows = measure(plan(shapes=(ODD,), granularities=(8,)), said=said)
    assert said.count("fake_even is left out: takes an even M") == 1, "once for all sparsities"
    assert "fake_even" not in {row.kernel for row in rows}


def test_a_peer_that_fails_is_named(monkeypatch):
    def fails(setting):
        raise NotImplementedError("no such product\nwith a second line")

    monkeypatch.setattr(run, "PEERS", {"peer": Peer(fails, lambda dtype, sparsity: "no" if sparsity == 0.75 else None)})
    said = []
    rows = measure(plan(), said=said)
    assert "small fp32 peer cannot run: no such product" in said
    assert "fp32 peer is left out: no" in said
    assert {row.baseline for row in rows} == {""}


def test_peers_may_be_kept_to_some_shapes():
    rows = measure(plan(shapes=(SMALL, ODD), peer_shapes={"peer": ("sm*",)}))
    assert {row.shape for row in rows if row.kernel == "peer"} == {"small"}


def test_kernels_are_chosen_by_pattern():
    rows = measure(plan(chosen=Chosen(("fake_*_to_*",), ("row_to_feature", "row_major")), peers=()))
    assert {row.kernel for row in rows if row.family == "gathered"} == {"fake_row_to_feature"}
    assert {row.layout for row in rows if row.family == "dense"} == {"row_major", "feature_major", "row_to_feature"}
    with pytest.raises(ValueError, match="no kernel of gathered is called nothing"):
        Chosen(("nothing",), LAYOUTS)


def test_rows_are_on_disk_before_the_run_ends(tmp_path, monkeypatch):
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


def test_another_commit_and_new_kernels_are_measured(tmp_path):
    path = tmp_path / "rows.csv"
    first = measure(plan(granularities=(8,)), path)
    more = measure(plan(), path)
    assert {row.granularity for row in more} == {16}
    assert {row.baseline for row in more} == {"peer 8"}, "the peer of the file"
    assert len(measure(plan(granularities=(8,)), path, commit="def")) == len(first)
    measure(plan(granularities=(8,)), path, append=False)
    assert len(read_rows(path)) == len(first)


def test_a_file_with_other_columns_is_not_gone_on_with(tmp_path):
    path = tmp_path / "rows.csv"
    for head in (",".join(COLUMNS[:-1]), ",".join([*COLUMNS, "note"]), ";".join(COLUMNS), "\ufeff" + ",".join(COLUMNS)):
        path.write_text(f"{head}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="has other columns than these, or a spreadsheet saved it"):
            measure(plan(), path)
        assert path.read_text(encoding="utf-8") == f"{head}\n"


def test_each_launch_is_timed_once_for_all_layouts(tunable):
    kept = []
    measure(plan(granularities=(8,), sparsities=(0.5,), tune=True), kept=kept)
    assert [(layout, width) for layout, width, _ in tunable.log] == [("feature_major", width) for width in (1, 2, 3, 2)]
    assert tunable.log[-1][2] > 0, "the fastest is remembered with its time"
    assert kept == [["fake"]]


def test_a_layout_that_shares_no_launch_is_tuned_too(tunable):
    tunable.shared = False
    measure(plan(granularities=(8,), sparsities=(0.5,), tune=True, chosen=Chosen((), LAYOUTS[:2])))
    assert list(dict.fromkeys(layout for layout, _, _ in tunable.log)) == ["feature_major", "row_major"]
    assert len(tunable.log) == 8


def test_a_wrong_launch_is_an_error_of_the_run(tunable):
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


@pytest.mark.parametrize(
    "failure", [RuntimeError("CUDA error 1"), KeyboardInterrupt()], ids=["no launch runs", "stopped by the user"]
)
def test_without_a_right_launch_nothing_is_remembered(failure, nothing_tuned, monkeypatch):
    """Nor written, where another shape was tuned before; what was measured for the problem earlier counts again."""
    tunable = TunedLaunches(
        "widths",
        1,
        Launch,
        describe=lambda packed, problem: Described(f"m={problem.m} amount="),
        worth_timing=lambda described, num_sms: [Launch(2), Launch(3)],
        untuned=lambda described, num_sms: Launch(1),
    )
    one = SimpleNamespace(tunable=tunable, packed=None, provider=SimpleNamespace(layout="row_major", kernel="widths"))
    times = iter([7.0, 5.0])

    def measure(provider, samples):
        if (time := next(times, None)) is None:
            raise failure
        return SimpleNamespace(latency=SimpleNamespace(median_us=time), relative_error=0.0)

    def setting(m):
        return SimpleNamespace(problem=lambda layout: problem(m), shape=SimpleNamespace(name=f"m{m}"))

    def problem(m):
        return Problem(m, 4, 4, torch.float16, CPU)

    monkeypatch.setattr(ours, "measure", measure)
    ours.tune(setting(1), [one], print)
    assert tunable.launch(None, problem(1)) == Launch(3)
    tunable.remember(None, problem(3), Launch(5), 1.0)
    for m, before in ((2, Launch(1)), (3, Launch(5))):
        with pytest.raises((ours.WrongLaunch, KeyboardInterrupt)):
            ours.tune(setting(m), [one], print)
        assert tunable.launch(None, problem(m)) == before
    tunable.save(CPU)
    entries = json.loads(store.user_file("").read_text())["kernels"]["widths"]["entries"]
    assert entries.keys() == {"m=1 amount=1", "m=3 amount=1"}


def test_a_wrong_product_has_no_time(tunable):
    tunable.wrong = 1
    rows = measure(plan(granularities=(8,), sparsities=(0.5,), peers=()))
    wrong = [row for row in rows if not row.correct]
    assert {row.kernel for row in wrong} >= {"fake"}
    assert all(row.latency_us is None and row.speedup is None and row.samples is None for row in wrong)


def test_copies_share_nothing():
    stored = registry.FORMATS["gathered"].from_dense(torch.ones(4, 6), torch.ones(4, 6, dtype=torch.bool), tile=2)
    again = copied((stored, [torch.ones(2)], "name"))
    assert torch.equal(again[0].values, stored.values) and again[0].values.data_ptr() != stored.values.data_ptr()
    assert again[2] == "name" and type(again) is tuple
    number = numbered(stored)
    assert number(0) is stored and number(2) is number(2) and number(1) is not number(2)
