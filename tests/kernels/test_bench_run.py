"""A benchmark run from plan to file, on a CPU: the reference stands in for GPU kernels, and a counter for the clock."""

import dataclasses
import itertools

import pytest
import torch
from sparsefront_kernels import registry
from sparsefront_kernels.bench import contender, ours, run
from sparsefront_kernels.bench.baselines import Peer
from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.copies import copied, numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
from sparsefront_kernels.bench.floor import Rates, floor_us
from sparsefront_kernels.bench.masks import PATTERN, MaskedWeight, Masks
from sparsefront_kernels.bench.ours import Chosen
from sparsefront_kernels.bench.plan import Plan
from sparsefront_kernels.bench.results import Results
from sparsefront_kernels.bench.row import COLUMNS, read_rows
from sparsefront_kernels.bench.run import Run
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.shapes import Shape
from sparsefront_kernels.bench.timing import Latency
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR

CPU = torch.device("cpu")
SMALL = Shape("small", 6, 32, 48)
ODD = Shape("odd", 5, 24, 40)


@dataclasses.dataclass(frozen=True)
class Launch:
    width: int


class WidthsTunable:
    """Launches of 1, 2 and 3, of which `wrong` gives a wrong product; 2 is what the fake clock finds fastest."""

    kernel, version = "fake", 7

    def __init__(self) -> None:
        self.now, self.wrong, self.log = Launch(1), None, []

    def candidates(self, prepared, problem):
        return [Launch(1), Launch(2), Launch(3)]

    def remember(self, prepared, problem, launch, latency_us):
        self.now = launch
        self.log.append((problem.layout, launch.width, latency_us))


def fake_entries(tunable):
    """A kernel in every layout, one that computes in TF32, and one that refuses an odd M."""
    reference = registry.reference("gathered")

    def entry(layout: str, **changed):
        def multiply(x, stored, bias):
            y = reference.run(x.t() if layout in X_FEATURE_MAJOR else x, stored, bias)
            y = y * (2 if tunable.now.width == tunable.wrong else 1)
            return y.t().contiguous() if layout in Y_FEATURE_MAJOR else y

        name = f"fake_{layout}"
        plain = {"name": name, "run": multiply, "layout": layout, "requires_cuda": True, "is_reference": False}
        return dataclasses.replace(reference, **plain | changed)

    fast = [entry(layout, tunable=tunable) for layout in LAYOUTS]
    rounded = entry("row_major", name="fake_tf32", dtype_name="tf32")
    even = entry(
        "row_major", name="fake_even", limits=lambda stored, problem: "takes an even M" if problem.m % 2 else None
    )
    return (*fast, rounded, even)


@pytest.fixture
def tunable():
    return WidthsTunable()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tunable):
    """What asks for a GPU is replaced; the clock gives every measurement another time."""
    ticks = itertools.count(100)

    def time_calls(calls, *, samples):
        assert calls
        fast = 50.0 if tunable.now.width == 2 else 0.0
        return Latency(float(next(ticks)) - fast, 1.0, 2.0, samples)

    monkeypatch.setattr(run, "require_gpu", lambda: None)
    monkeypatch.setattr(run, "measured_rates", lambda dtype, device: Rates(100.0, 1000.0))
    monkeypatch.setattr(run, "_device", lambda: CPU)
    monkeypatch.setattr(contender, "time_calls", time_calls)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Some GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = type("Properties", (), {"L2_cache_size": 10_000})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(ours, "entries", lambda: fake_entries(tunable))
    monkeypatch.setattr(run, "PEERS", {"peer": Peer(peer_contenders, lambda dtype, sparsity: None)})


def peer_contenders(setting: Setting) -> list[Contender]:
    """Two settings of one kernel; the second is the slower one."""
    weight = setting.weight()

    def make(copy: int):
        x = setting.x_in("row_major", copy)
        return lambda: x @ weight.t()

    one = Contender(
        family="blocked",
        kernel="peer",
        pattern="block_wise",
        granularity=8,
        distribution="equal",
        dtype_name=setting.dtype_name,
        layout="row_major",
        sparsity=0.5,
        operand_bytes=1000,
        weight_bytes=500,
        make=make,
        expected=setting.expected(weight),
    )
    return [one, dataclasses.replace(one)]


def plan(**changed):
    plain = Plan(
        shapes=(SMALL,),
        dtypes=("fp32",),
        sparsities=(0.5, 0.75),
        granularities=(8, 16),
        distributions=("equal",),
        peers=("peer",),
        chosen=Chosen((), LAYOUTS),
        tune=False,
        samples=20,
    )
    return dataclasses.replace(plain, **changed)


def measure(asked, path=None, *, commit="abc", append=True, said=None, kept=None):
    results = Results.opened(path, gpu="Some GPU", commit=commit, append=append)
    said, kept = [] if said is None else said, [] if kept is None else kept
    measuring = Run(results, said.append, lambda tuned: kept.append([one.kernel for one in tuned]))
    measuring.measure(asked)
    return measuring.rows


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


def test_tf32_is_measured_on_tf32_kernels_only():
    rows = measure(plan(dtypes=("fp32", "tf32"), peers=()))
    names = {dtype: {row.kernel for row in rows if row.dtype == dtype} for dtype in ("fp32", "tf32")}
    assert "fake_tf32" in names["tf32"] and "fake_even" not in names["tf32"]
    assert "fake_tf32" not in names["fp32"] and "fake_even" in names["fp32"]
    assert len([row for row in rows if row.dtype == "tf32" and row.family == "dense"]) == 8, "measured once"


def test_refusals_are_said():
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
    with pytest.raises(ValueError, match="no kernel of this family is called nothing"):
        Chosen(("nothing",), LAYOUTS)


def test_rows_are_on_disk_before_the_run_ends(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"

    def killed(setting):
        if setting.sparsity == 0.75:
            raise KeyboardInterrupt
        return peer_contenders(setting)

    monkeypatch.setattr(run, "PEERS", {"peer": Peer(killed, lambda dtype, sparsity: None)})
    with pytest.raises(KeyboardInterrupt):
        measure(plan(), path)
    held = read_rows(path)
    assert {row["asked_sparsity"] for row in held} == {"0", "0.5"}
    assert all(row["speedup"] for row in held)
    monkeypatch.setattr(run, "PEERS", {"peer": Peer(peer_contenders, lambda dtype, sparsity: None)})
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
    path.write_text(",".join(COLUMNS[:-1]) + "\n")
    with pytest.raises(ValueError, match="has other columns"):
        measure(plan(), path)


def test_each_launch_is_timed_once_for_all_layouts(tunable):
    kept = []
    measure(plan(granularities=(8,), sparsities=(0.5,), tune=True), kept=kept)
    assert [(layout, width) for layout, width, _ in tunable.log] == [("feature_major", width) for width in (1, 2, 3, 2)]
    assert tunable.log[-1][2] > 0, "the fastest is remembered with its time"
    assert kept == [["fake"]]


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


def test_a_wrong_product_has_no_time(tunable):
    tunable.wrong = 1
    rows = measure(plan(granularities=(8,), sparsities=(0.5,), peers=()))
    wrong = [row for row in rows if not row.correct]
    assert {row.kernel for row in wrong} >= {"fake_row_major"}
    assert all(row.latency_us is None and row.speedup is None and row.samples is None for row in wrong)


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
            torch.randn(n, k), mask, {"tile": self.granularity, "drop_empty_outputs": True}, self.compact
        )


def patterns(**settings):
    return {"distributions": (PATTERN,), "masks": Masks(PrunedOutputs, settings), "granularities": (12,)}


def test_masks_of_a_pattern_are_measured_at_their_own_density():
    rows = [row for row in measure(plan(sparsities=(0.5,), peers=(), **patterns())) if row.family == "gathered"]
    kept = (2 * 12 * 3 + 8 * 32) / (48 * 32)  # two tiles of 12 outputs and one of 8
    assert len(rows) == 5 and all(row.correct for row in rows)
    for row in rows:
        assert (row.pattern, row.distribution, row.mask_settings) == ("tile_wise", "pattern", "keep=3")
        assert row.sparsity == pytest.approx(1 - kept) and row.asked_sparsity == 0.5
        assert row.predicted_us is None
        rates = Rates(100.0, 1000.0)
        weight_bytes = 4 * kept * 48 * 32 + 4 * (2 * 3 + 32) + 8 * 4 + 4 * 32  # values, inputs, offsets, outputs
        floor = floor_us(6, 32, 48, density=kept, weight_bytes=weight_bytes, element_bytes=4, rates=rates)
        assert row.roofline_fraction == pytest.approx(floor / row.latency_us)


def test_a_compact_product_leaves_pruned_outputs_out(monkeypatch):
    products, checks = [], []
    ours = run.gathered_contenders

    def seen(drawn, **wanted):
        found = ours(drawn, **wanted)
        products.append(drawn.setting.problem("feature_major"))
        checks.extend(tuple(one.contender.calls(1)[0]().shape) for one in found if one.entry.layout == "feature_major")
        return found

    monkeypatch.setattr(run, "gathered_contenders", seen)
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
        less = floor_us(
            6, 32, 32, density=kept * 48 / 32, weight_bytes=weight_bytes, element_bytes=4, rates=Rates(100.0, 1000.0)
        )
        assert row.roofline_fraction == pytest.approx(less / row.latency_us)


def test_other_settings_of_a_pattern_are_measured_too(tmp_path):
    path = tmp_path / "rows.csv"
    first = measure(plan(sparsities=(0.5,), peers=(), **patterns()), path)
    assert {row.mask_settings for row in first} == {"", "keep=3"}
    assert measure(plan(sparsities=(0.5,), peers=(), **patterns(keep=3)), path) == [], "as they were"
    more = measure(plan(sparsities=(0.5,), peers=(), **patterns(keep=4)), path)
    assert {row.mask_settings for row in more} == {"keep=4"}


def test_a_mask_that_cannot_be_made_is_an_error_of_the_run(monkeypatch):
    def refused(self, n, k, sparsity, device):
        raise ValueError("has no weight of 32 inputs and 48 outputs")

    monkeypatch.setattr(PrunedOutputs, "draw", refused)
    measuring = Run(Results.opened(None, gpu="Some GPU", commit="abc", append=False), lambda line: None)
    measuring.measure(plan(sparsities=(0.5,), **patterns() | {"distributions": ("equal", PATTERN)}))
    assert measuring.errors == ["small pattern g=12: no mask: has no weight of 32 inputs and 48 outputs"]
    assert {row.distribution for row in measuring.rows if row.family == "gathered"} == {"equal"}


def same_mask_peer(setting: Setting, drawn: DrawnWeight) -> list[Contender]:
    """Multiplies by what our kernels multiply by, and leaves the pruned outputs out."""
    dense = drawn.stored.to_dense()
    outputs = drawn.stored.output_index.long()

    def make(copy: int):
        x = setting.x_in("feature_major", copy)
        return lambda: dense[outputs] @ x

    def whole(y):
        return torch.zeros(setting.shape.n, setting.shape.m).index_copy(0, outputs, y)

    own = peer_contenders(setting)[0]
    return [
        dataclasses.replace(
            own,
            kernel="same",
            granularity=drawn.granularity,
            distribution=drawn.distribution,
            mask_settings=drawn.mask_settings,
            pattern=drawn.pattern,
            layout="feature_major",
            make=make,
            expected=drawn.expected,
            whole=whole,
        )
    ]


def test_a_peer_on_the_same_mask(tmp_path, monkeypatch):
    none = {"refusal": lambda dtype, sparsity: None}
    peers = {"peer": Peer(peer_contenders, **none), "same": Peer(same_mask_peer, same_mask=True, **none)}
    monkeypatch.setattr(run, "PEERS", peers)
    path = tmp_path / "rows.csv"
    asked = plan(sparsities=(0.5,), peers=("same", "peer"), **patterns() | {"granularities": (12, 16)})
    rows = measure(asked, path)
    same = {row.granularity: row for row in rows if row.kernel == "same"}
    assert same.keys() == {12, 16} and all(row.correct and row.mask_settings == "keep=3" for row in same.values())
    (peer,) = (row for row in rows if row.kernel == "peer")
    assert peer.latency_us < same[12].latency_us, "the clock ticks"
    assert {row.baseline for row in rows if row.family == "gathered"} == {"peer 8"}
    assert measure(asked, path) == []
    alone = [row for row in measure(dataclasses.replace(asked, peers=("same",)), commit="def")]
    assert {(row.granularity, row.baseline) for row in alone if row.family == "gathered"} == {
        (12, "same 12"),
        (16, "same 16"),
    }, "each beside the peer on its own mask"


def test_copies_share_nothing():
    stored = registry.FORMATS["gathered"].from_dense(torch.ones(4, 6), torch.ones(4, 6, dtype=torch.bool), tile=2)
    again = copied((stored, [torch.ones(2)], "name"))
    assert torch.equal(again[0].values, stored.values) and again[0].values.data_ptr() != stored.values.data_ptr()
    assert again[2] == "name" and type(again) is tuple
    number = numbered(stored)
    assert number(0) is stored and number(2) is number(2) and number(1) is not number(2)
