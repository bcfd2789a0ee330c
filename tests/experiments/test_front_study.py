"""The plan's analysis and its tuning: fixed answers on made-up records."""

import hashlib
import sys

import numpy as np
import pytest

from experiments.front import iso_quality, tuning
from experiments.front.iso_quality import BLOCKS_75, TWO_OF_FOUR, WIDTH_50, Line, Timing
from sparsefront.points import read_points
from sparsefront.results.packed import OUTCOMES, RECORD, SUFFIX, pack
from sparsefront.results.record import Result
from sparsefront.results.store import read_results
from sparsefront.tasks.outcomes import Outcomes, save_outcomes

TEXTS = 2000
SIX_LAYERS = Line("depth", 0.5)
LOST = {SIX_LAYERS: 20, WIDTH_50: 16, TWO_OF_FOUR: 5, BLOCKS_75: 40}  # texts of 2,000: 1, 0.8, 0.25 and 2 points
MILLISECONDS = {SIX_LAYERS: 2.0, WIDTH_50: 2.5, TWO_OF_FOUR: 3.2, BLOCKS_75: 2.2}  # dense: 4


@pytest.fixture(scope="module")
def template() -> Result:
    return read_results([tuning.RECORDS / f"530d1588195ae135{SUFFIX}"]).results[0]


@pytest.fixture
def write_record(template, tmp_path):
    """write_record(line, right, **fields) -> packed record of a line, with outcomes if it has right answers."""

    def write(line: Line, lost: int | None, **fields):
        run_id = f"{line.pattern}-{line.sparsity:g}-{len(list(tmp_path.iterdir()))}"
        choice = {"pattern": line.pattern, "granularity": None if line.size == "2:4" else line.size}
        choice |= {"n_of_m": line.size if line.size == "2:4" else None, "sparsity_target": line.sparsity}
        facts = {"run_id": run_id, "record_sha256": None, "plan_sha256": "a" * 64, "pattern_parameters": {}}
        members = {}
        if lost is not None:
            right = np.ones((2, TEXTS), np.uint8)
            right[1, :lost] = 0
            sides = {iso_quality.CONTROL: right[0], "masked": right[1]}
            if fields.pop("no_control", False):
                del sides[iso_quality.CONTROL]
                facts |= {iso_quality.CONTROL: None}
            save_outcomes(
                tmp_path / OUTCOMES, {side: Outcomes("accuracy", values, None, "t") for side, values in sides.items()}
            )
            members[OUTCOMES] = (tmp_path / OUTCOMES).read_bytes()
            (tmp_path / OUTCOMES).unlink()
            facts |= {"outcomes_file": OUTCOMES, "outcomes_sha256": hashlib.sha256(members[OUTCOMES]).hexdigest()}
            facts |= {"evaluated_samples": TEXTS}
        record = template.with_values(choice | facts | fields)
        (tmp_path / f"{run_id}{SUFFIX}").write_bytes(pack({RECORD: record.to_json().encode(), **members}))

    return write


@pytest.fixture
def write_block(write_record):
    """write_block(seed) -> records of four lines; the control is in the row of the depth line alone."""

    def write(seed: int, lines=LOST, **fields):
        for line in lines:
            write_record(line, LOST[line], seed=seed, no_control=line != SIX_LAYERS, **fields)

    return write


@pytest.fixture
def write_timings(write_record):
    def write(lines=LOST, **fields):
        for line in lines:
            sparse = MILLISECONDS[line]
            ends = {f"speedup_dataset{end}": 4 / sparse for end in ("", "_low", "_high")}
            timed = {"latency_dense_dataset_ms": 4.0, "latency_sparse_dataset_ms": sparse, "latency_device": "cuda"}
            write_record(line, None, recovery_steps=0, recovery="none", **ends | timed | fields)

    return write


def study_of(folder):
    reading = read_results([folder])
    blocks, reasons = iso_quality.blocks_of(reading.results, reading.outcomes_of)
    timings, anew = iso_quality.timings_of(reading.results)
    study = {
        iso_quality.BUDGETS[steps]: (ones, iso_quality.resample(ones, timings, draws=50))
        for steps, ones in blocks.items()
    }
    return study, anew, reasons


@pytest.mark.parametrize(
    ("lost", "speed", "at", "answer"),
    [
        ([1.0], [2.0], 0.5, 1.0),  # half of the way from the control
        ([1.0], [2.0], 3.0, 2.0),  # beyond the last line: its speed
        ([0.5, 1.5], [1.0, 2.0], 1.0, 1.5),
        ([0.5, 1.0, 1.5], [1.0, 0.5, 2.0], 0.75, 1.25),  # a slower line that loses more is not on the front
        ([-0.5, 1.0], [1.0, 2.5], 0.25, 1.75),  # better and faster than the control, which then is not
        ([0.2], [-0.5], 1.0, 0.0),  # slower than dense: the control
        ([0.2, 0.2], [1.0, 2.0], 0.2, 2.0),
        ([1.0, 1.0], [1.0, 2.0], 0.5, 1.0),  # of lines that lose the same, the faster one is on the front
        ([0.4, 0.1, 0.9], [1.0, 1.0, 2.0], 0.5, 1.5),  # of lines as fast, the one that loses less is
    ],
)
def test_speed_at_equal_quality(lost, speed, at, answer):
    both = (np.array([lost, lost]), np.array([speed, speed]))
    assert iso_quality.iso_speed(*both, at) == pytest.approx([answer, answer])


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.01, None, None], [0.03, None, None]),
        ([0.5, 0.6], [1.0, 1.0]),
    ],
)
def test_holm_adjusts_for_all_named(p_values, adjusted):
    assert iso_quality.holm(p_values) == pytest.approx(adjusted)


def test_p_counts_draws_beyond_zero():
    values = np.array([1.0, *[1.0] * 95, *[-1.0] * 4])
    assert iso_quality.two_sided(values) == pytest.approx(2 * 5 / 100)
    assert iso_quality.two_sided(np.zeros(100)) == 1


@pytest.mark.parametrize(("drawn", "answer"), [([0.5] * 100, True), ([0.4] * 94 + [0.6] * 6, False)])
def test_non_inferiority_is_one_sided(drawn, answer):
    assert iso_quality.is_non_inferior(np.array([0.0, *drawn])) is answer


def test_known_study_has_known_answers(tmp_path, write_block, write_timings):
    for seed in range(5):
        write_block(seed)
    write_timings()
    study, anew, reasons = study_of(tmp_path)
    (blocks, drawn) = study["B4"]
    assert len(blocks) == 5 and not reasons and anew == set(LOST)
    assert {line: drawn.lost[line][0] for line in LOST} == pytest.approx({key: lost / 20 for key, lost in LOST.items()})
    depth, width = 0.5 * np.log(2), 0.5 / 0.8 * np.log(1.6)
    # sparse: 2:4 alone is faster than dense within half a point; between it and blocks nothing is interpolated
    assert drawn.iso_quality(0.5)[0] == pytest.approx(np.log(1.25) - max(depth, width))
    by_name = {(what, budget): values for what, budget, values in iso_quality.contrasts_of(study)}
    assert len(by_name) == 6 and sum(values is not None for values in by_name.values()) == 2
    assert by_name[f"points lost by {TWO_OF_FOUR} minus those by {WIDTH_50}", "B4"][0] == pytest.approx(0.25 - 0.8)
    text = "\n".join(iso_quality.tables(study, anew))
    assert "B4, 5 seed blocks" in text and "1.25× (1.25 to 1.25) †" in text and text.count("not measured") == 8


def test_intervals_cover_texts_blocks_and_processes(tmp_path, write_block, write_timings):
    """Of a share p of texts the standard error is √(p (1 - p) / n); of two processes at ±1 % it is 0.7 %."""
    write_block(0)
    study, *_ = study_of(tmp_path)
    lost = study["B4"][1].lost[BLOCKS_75][1:]
    assert lost.std() == pytest.approx(100 * np.sqrt(0.02 * 0.98 / TEXTS), rel=0.3)
    timings = {TWO_OF_FOUR: {"fp16": [Timing(0.29, 0.0), Timing(0.31, 0.0)]}}
    drawn = iso_quality.resample(study["B4"][0], timings, draws=2000).speed[TWO_OF_FOUR]
    assert drawn[0] == pytest.approx(0.3) and drawn[1:].std() == pytest.approx(0.01 / np.sqrt(2), rel=0.1)


def test_faster_dtype_counts_over_fastest_dense(tmp_path, write_timings):
    """In bf16 dense takes 5 ms: 4/5 of those speedups count, and a line in fp8 stands apart."""
    write_timings()
    ends = {f"speedup_dataset{end}": 2.5 for end in ("", "_low", "_high")}
    write_timings(**ends, latency_dense_dataset_ms=5.0, dtype="bf16", precision="bf16")
    write_timings(**ends, latency_dense_dataset_ms=5.0, dtype="bf16", precision="fp8")
    timings, _ = iso_quality.timings_of(read_results([tmp_path]).results)
    assert {name: np.exp(ones[0].log_speedup) for name, ones in timings[TWO_OF_FOUR].items()} == pytest.approx(
        {"fp16": 1.25, "bf16": 2.0, "fp8": 2.0}
    )


@pytest.mark.parametrize("fields", [{"latency_device": "cpu"}, {"batch_size": 128}])
def test_other_latencies_are_no_speeds(tmp_path, write_timings, fields):
    write_timings(**fields)
    assert iso_quality.timings_of(read_results([tmp_path]).results) == ({}, set())


@pytest.mark.parametrize(
    ("lines", "fields", "reason"),
    [
        (
            [SIX_LAYERS, WIDTH_50, TWO_OF_FOUR],
            {},
            "seed 1, 3125 steps: not ranked, 1 line missing: block_wise 64x128 0.75",
        ),
        ([WIDTH_50, TWO_OF_FOUR, BLOCKS_75], {}, "seed 1, 3125 steps: not ranked, 3 results without a control"),
        (LOST, {"plan_sha256": "b" * 64, "time": "2027-01-01T00:00:00+00:00"}, "4 results of plan bbbbbbbb"),
        (LOST, {"val_masked": None}, "has no held-out accuracy"),
        (LOST, {"outcomes_sha256": "0" * 64}, "seed 1, 3125 steps: not ranked, outcomes of 0 controls"),
        ([*LOST, TWO_OF_FOUR], {}, "seed 1, 3125 steps: not ranked, 5 results of 4 lines"),
    ],
)
def test_invalid_block_is_named(tmp_path, write_block, lines, fields, reason):
    write_block(0)
    write_block(1, lines, **fields)
    study, _, reasons = study_of(tmp_path)
    assert [block.seed for block in study["B4"][0]] == [0]
    assert len(reasons) == 1 and reason in reasons[0]


def test_tuning_seed_is_not_reported(tmp_path, write_block):
    for seed in (0, iso_quality.TUNING_SEED):
        write_block(seed)
    study, _, reasons = study_of(tmp_path)
    assert [block.seed for block in study["B4"][0]] == [0] and not reasons


def test_block_of_two_networks_is_named(tmp_path, write_block):
    write_block(0)
    write_block(1, [SIX_LAYERS, WIDTH_50])
    write_block(1, [TWO_OF_FOUR, BLOCKS_75], dense_weights_sha256="f" * 64)
    study, _, reasons = study_of(tmp_path)
    assert [block.seed for block in study["B4"][0]] == [0] and "of 2 dense networks" in reasons[0]


def test_best_lines_go_on(tmp_path, write_record, template):
    """Of lines that are measured in their order, the first are best; the control comes with the depth lines."""
    points = read_points(tuning.LINES)
    for place, point in enumerate(points):
        line = Line.of_point(point)
        first, amount, _ = (line.first or "  ").split(" ")
        structure = {"structured": first or None, "structured_parameters": {"sparsity": float(amount or 0)}}
        write_record(line, place, seed=0, val_masked=0.95 - place / 1000, **structure)
    reading = read_results([tmp_path])
    (block,) = iso_quality.blocks_of(reading.results, reading.outcomes_of)[0][3125]
    assert iso_quality.best_points([block], points) == [*points[:3], *points[5:8]]
    with pytest.raises(ValueError, match="the block would have no control"):
        iso_quality.best_points([block], [[*point, "control=null"] for point in points])


def test_page_and_picture_are_written(tmp_path, write_block, write_timings, monkeypatch, capsys):
    for steps in (782, 3125):
        write_block(0, recovery_steps=steps)
    write_timings(lines=[SIX_LAYERS, TWO_OF_FOUR])
    monkeypatch.setattr(iso_quality, "FRONT", tmp_path)
    monkeypatch.setattr(iso_quality, "PAGE", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("\n".join(iso_quality.MARKS))
    monkeypatch.setattr(sys, "argv", ["iso_quality", "--records", str(tmp_path), "--write"])
    iso_quality.main()
    said = capsys.readouterr()
    assert said.out.strip() in (tmp_path / "README.md").read_text()
    assert said.err == f"not timed, so in no speedup: {BLOCKS_75}, {WIDTH_50}\n"
    assert "speedup at equal quality" in (tmp_path / "iso_quality.svg").read_text()


ACCURACIES = dict.fromkeys(tuning.GRID, 0.94) | {tuning.Recipe(1e-4, 1): 0.945}
GRADUAL = "schedule=gradual schedule.end=0.5"
AT_EDGE = dict.fromkeys(tuning.GRID, 0.94) | {tuning.Recipe(2e-4, 0): 0.95}


def with_factors(gains):
    return {tuning.Recipe(1e-4, 1, frozenset({factor})): 0.945 + gain for factor, gain in gains.items()}


@pytest.mark.parametrize(
    ("accuracies", "count", "first"),
    [
        ({}, 6, tuning.Recipe(5e-5, 0)),
        (AT_EDGE, 1, tuning.Recipe(4e-4, 0)),
        (AT_EDGE | {tuning.Recipe(4e-4, 0): 0.96}, 4, tuning.Recipe(4e-4, 0, frozenset({GRADUAL}))),
        (ACCURACIES | with_factors({GRADUAL: 0}), 3, tuning.Recipe(1e-4, 1, frozenset({"importance=taylor"}))),
    ],
)
def test_tuning_follows_the_plan(accuracies, count, first):
    recipes = tuning.next_recipes("channel", accuracies)
    assert len(recipes) == count and recipes[0] == first


@pytest.mark.parametrize(
    ("gains", "factors"),
    [
        ({GRADUAL: 0.0034 + 3e-8, "importance=taylor": -0.01}, set()),  # 17 of 5,000 rows, in float32
        ({GRADUAL: 0.0036}, {GRADUAL}),
        ({"schedule=gradual schedule.end=0.7": 0.01}, set()),  # not the plan's
        ({"importance=taylor": 0.004, "importance=fisher": 0.005}, {"importance=fisher"}),
    ],
)
def test_factor_must_beat_the_standard_error(gains, factors):
    assert tuning.choose_recipe(ACCURACIES | with_factors(gains)) == tuning.Recipe(1e-4, 1, frozenset(factors))


def test_recipes_reach_the_lines(tmp_path):
    recipes = dict.fromkeys(tuning.FAMILIES, tuning.Recipe(1e-4, 0))
    recipes["block_wise"] = tuning.Recipe(2e-4, 1, frozenset({GRADUAL}))
    recipes["n_m"] = tuning.Recipe(1e-4, 0, frozenset({"importance=taylor"}))
    points = tuning.with_recipes(tuning.with_recipes(read_points(tuning.LINES), recipes), recipes)
    file = tmp_path / "lines.yaml"
    file.write_text(iso_quality.points_file(points, "# lines"))
    assert read_points(file) == points and len(points) == 13
    otherwise = [any(text in ("pattern=block_wise", "pattern=n_m") for text in point) for point in points]
    assert ["control=null" in point for point in points] == otherwise
    states = ["recipe.recovery_lr=0.0002", "recovery.hidden_states=1", "recovery.store_teacher=false"]
    assert points[9][5:] == [*states, *GRADUAL.split(), "control=null"]


def test_grid_reads_the_committed_records(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tuning"])
    tuning.main()
    printed = capsys.readouterr().out
    assert "| 94.24 | 93.56 | 94.86 | 89.94 | 89.58 | 95.14 |" in printed


def test_tuning_counts_dense_networks(tmp_path, write_record, capsys, monkeypatch):
    for dense in ("d" * 64, "e" * 64):
        write_record(TWO_OF_FOUR, 5, seed=100, dense_weights_sha256=dense)
    monkeypatch.setattr(sys, "argv", ["tuning", "--records", str(tmp_path)])
    tuning.main()
    assert "recipes started from 2 dense networks" in capsys.readouterr().out


def test_equal_recipes_go_to_the_faster():
    equals = dict.fromkeys(reversed(tuning.GRID), 0.94)
    assert tuning.choose_recipe(equals) == tuning.Recipe(5e-5, 0)


def test_gradual_record_has_the_plans_end(tmp_path, write_record):
    """A record of the plan's gradual schedule is that of the factor."""
    write_record(TWO_OF_FOUR, 5, seed=100, schedule="gradual", schedule_parameters={"end": 0.5})
    (recipe,) = tuning.accuracies_of(read_results([tmp_path]).results)[0]["n_m"]
    assert recipe.factors == {GRADUAL} <= set(tuning.FACTORS)


def test_records_of_two_tasks_are_refused(tmp_path, write_block, monkeypatch, capsys):
    write_block(0)
    write_block(1, dataset="glue", dataset_task="sst2")
    monkeypatch.setattr(sys, "argv", ["iso_quality", "--records", str(tmp_path)])
    with pytest.raises(SystemExit):
        iso_quality.main()
    assert "records of 2 tasks: " in capsys.readouterr().err
