"""The page of a study: ours beside the source, what is missing, targets, blocks and controls."""

import shlex
from dataclasses import replace

import pytest
from made_study import FOLDER, MEASURED, OF_A_BATCH, filled, line_of, point_of


def test_the_page_sets_ours_beside_the_source_and_names_what_is_missing(modules, study, tmp_path):
    filled(modules, study, tmp_path)
    text = modules["page"].page(study, tmp_path)
    lines = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in text.splitlines() if "|" in line}
    ours = "| 2 | 88.50 ± 0.00 | -1.50 | -1.00 | 88.50 ± 0.00 | +0.50 | -0.50 | 0.80 (0.70–0.90) | 90.50 |"
    assert ours in lines["EW", "50 %"]
    assert "speedup auto" in text and "speedup sparse" not in text, "a column without anything is left out"
    assert (
        "Sparse kernels change the metric by at most 0.10 points (1 timed point)" in text and ": of a source." in text
    )
    assert "missing" in lines["BW", "50 %"] and lines["BW", "50 %"].endswith("| 80 |")
    assert "unsupported: no layer fits" in lines["BW", "75 %"]
    assert "| 3 | 5 of 6 | 1 |" in text, "cells without any line"
    assert "| speedup end to end, batches of 8 samples of 128 tokens, seed 0 | " in text
    best = "| 50 % | EW | 2 | 2 | 3 | 88.50 ± 0.00 | 88.50 ± 0.00 | 80 |"
    assert f"{best} reached so far: of 2 seeds finalists have *EW* 2, *2:4* 1 |" in text
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


def test_three_sentences_and_the_plot_come_first_and_provenance_last(modules, study, tmp_path):
    filled(modules, study, tmp_path)
    text = modules["page"].page(replace(study, notes="- What it says."), tmp_path)
    assert text.startswith("# A trial\n\nAbout it.\n\n![Accuracy on test](accuracy.png)\n\n## Targets\n")
    assert "## Notes\n\n- What it says.\n" in text
    assert text.splitlines()[-1].startswith("*Measured on*: ") and "0123456" not in text, "commits are in the CSV"


def test_a_speedup_of_another_dense_network_is_told(modules, study, tmp_path):
    path = filled(modules, study, tmp_path)
    assert "retrained" not in modules["page"].page(study, tmp_path)
    point = point_of(modules, study, "EW", 0)
    timed = line_of(0.883, speedup=0.9, speedup_low=0.8, speedup_high=1.0, gpu="H100", sparse=0.883, **OF_A_BATCH)
    timed |= {"masked": 0.88, "sparse": 0.88, "dense_weights_sha256": "another"}
    modules["cells"].append_line(path, point, "auto", timed, overrides=shlex.join(point.overrides))
    text = modules["page"].page(study, tmp_path)
    assert "0.90 (0.80–1.00)" in text and "H100 (" in text
    assert "1 of these networks was retrained from other dense weights" in text
    assert "metrics differ by at most 0.20 (val) and 0.50 points (test)" in text


@pytest.mark.parametrize(
    ("second", "chosen", "verdict"),
    [(None, "EW", "reached so far"), (0.9, "2:4", "reached |"), (0.7, "EW", "reached |"), (0.1, "EW", "reached |")],
)
def test_a_bar_is_decided_by_all_seeds_of_its_finalists(modules, study, tmp_path, second, chosen, verdict):
    """Of lines of 82, 80 and 78 % of val with the first seed the first two are finalists."""
    path = tmp_path / "points.csv"
    of_first = {"EW": 0.82, "2:4": 0.8, "BW": 0.78}
    for seed, values in ((0, of_first), (1, {"EW": 0.82, "2:4": second, "BW": 0.99})):
        for row, value in values.items():
            point = point_of(modules, study, row, seed)
            if value is not None:
                modules["cells"].append_line(path, point, "none", line_of(value), overrides=shlex.join(point.overrides))
    text = modules["page"].page(study, tmp_path)
    (target,) = (line for line in text.splitlines() if "| 80 | reached" in line)
    assert f"| 50 % | {chosen} |" in target and f"| 80 | {verdict}" in target


def test_retrainings_at_a_crossing_do_not_keep_a_bar_open(modules, levels, tmp_path):
    """They have seeds that headlines have not; a headline's own seeds decide."""
    study = replace(levels, headline_seeds=(0, 1), targets={levels.networks[0]: {"50 %": 80.0}})
    assert study.seeds == (0, 1, 2)
    path = tmp_path / "points.csv"
    for row in ("uniform", "EW"):
        for seed in (0, 2, 1):
            point = point_of(modules, study, row, seed)
            modules["cells"].append_line(path, point, "none", line_of(0.9), overrides=shlex.join(point.overrides))
            verdict = "reached |" if (row, seed) == ("EW", 1) else "reached so far"
            assert row == "uniform" or f"| 80 | {verdict}" in modules["page"].page(study, tmp_path)


def test_a_line_says_where_the_network_is_less_sparse_than_asked(modules, study, tmp_path):
    point = next(modules["definition"].points(study))
    modules["cells"].append_line(
        tmp_path / "points.csv",
        point,
        "none",
        line_of(0.8, sparsity_achieved=0.2),
        overrides=shlex.join(point.overrides),
    )
    assert "| EW | 50 % (has 20 %) | 1 |" in modules["page"].page(study, tmp_path)


def test_lines_of_several_dense_networks_are_said(modules, study, tmp_path):
    path = filled(modules, study, tmp_path)
    assert "compare within a block only" not in modules["page"].page(study, tmp_path)
    other = next(point for point in modules["definition"].points(study) if point.row == "2:4")
    modules["cells"].append_line(
        path, other, "none", line_of(0.8, dense_weights_sha256="b"), overrides=shlex.join(other.overrides)
    )
    text = modules["page"].page(study, tmp_path)
    assert "Seed 0 has 2 dense networks: **compare within a block only**" in text
    letters = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in text.splitlines() if "|" in line}
    assert {("EW", "50 %", "A"), ("2:4", "50 %", "B"), ("2:4", "75 %", "A"), ("BW", "50 %", "")} <= letters
    assert "| dense | seed 0 | A | 1 | 90.00 |" in text and "| dense | seed 0 | B | 1 | 90.00 |" in text


def test_lines_that_were_trained_anew_say_how_far_they_lie_apart(modules, study, tmp_path):
    """In pairs with the line that counts, where the dense network is another one; a second timing of the same is none."""
    path = filled(modules, study, tmp_path)
    point = point_of(modules, study, "EW", 0)
    write = modules["cells"].append_line
    write(path, point, "none", line_of(0.885), overrides=shlex.join(point.overrides))
    assert "retrained dense networks" not in modules["page"].page(study, tmp_path)
    for digest, masked in (("b", 0.87), ("c", 0.88)):
        found = line_of(masked, dense_weights_sha256=digest)
        write(path, point, "none", found, overrides=shlex.join(point.overrides))
    text = modules["page"].page(study, tmp_path)
    # 88.5 twice and 87.0 beside 88.0
    assert "| network | pairs | val: median | at most | test: median | at most |" in text
    assert "| 3 | 0.50 | 1.00 | 0.50 | 1.00 |" in text


def test_retrainings_of_another_dense_network_are_of_another_block(modules, study, tmp_path):
    """Where seeds are those of recoveries, all share the dense network of the first seed."""
    one = replace(study, seed_key="recovery.seed")
    for seed, digest in ((0, "a"), (1, "b")):
        point = point_of(modules, one, "EW", seed)
        found = line_of(0.8, dense_weights_sha256=digest)
        modules["cells"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
        dense = modules["definition"].dense_point(one, point)
        found = line_of(0.0, evaluated_samples=9)
        modules["cells"].append_line(
            tmp_path / "points.csv", dense, "none", found, overrides=shlex.join(dense.overrides)
        )
    assert "| EW | 50 % | A, B | 2 |" in modules["page"].page(one, tmp_path)


def test_each_line_has_the_control_that_its_difference_is_to(modules, study, tmp_path):
    """Two rates have two controls; of a seed that is not there the dense network does not count either."""
    for row, control in (("EW", 0.89), ("2:4", 0.91)):  # of test; those of val are equal
        point = point_of(modules, study, row, 0)
        found = line_of(0.85, dense_continued=control)
        modules["cells"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    dense = modules["definition"].dense_point(study, point)
    line = line_of(0.0, evaluated_samples=9)
    modules["cells"].append_line(tmp_path / "points.csv", dense, "none", line, overrides=shlex.join(dense.overrides))
    text = modules["page"].page(study, tmp_path)
    assert "| val | val − dense | val − continued dense | test | test − dense | test − continued dense |" in text
    assert "| 85.00 | -3.00 | -4.00 |" in text and "| 85.00 | -3.00 | -6.00 |" in text
    assert "| continued dense |  |  | 89.50 |  |  | 89.00 to 91.00 |" in text
    assert "| accuracy | CPU (, torch 2) | 2026-11-24 |" in text


def test_dense_networks_of_several_seeds_are_told_together(modules, study, tmp_path):
    path = filled(modules, study, tmp_path)
    second = next(p for p in modules["definition"].points(study) if (p.row, p.column, p.seed) == ("EW", "50 %", 1))
    line = line_of(0.0, val_dense=0.91, dense=0.9, evaluated_samples=9)
    dense = modules["definition"].dense_point(study, second)
    modules["cells"].append_line(path, dense, "none", line, overrides=shlex.join(dense.overrides))
    assert "| dense |  | 2 | 90.50 ± 0.71 |  |  | 89.00 ± 1.41 |" in modules["page"].page(study, tmp_path)


def test_what_was_measured_beside_the_headlines_is_shown(modules, study, tmp_path):
    definition, (network,) = modules["definition"], study.networks
    some = replace(study, headlines_only=(network,))
    path = tmp_path / "points.csv"
    wanted = [point for point in definition.points(some)]
    other = next(point for point in definition.every_point(some) if point not in wanted and point.row == "BW")
    for point in (*wanted, other):
        modules["cells"].append_line(path, point, "none", line_of(0.81), overrides=shlex.join(point.overrides))
    text = modules["page"].page(some, tmp_path)
    assert f"| {other.row} | {other.column} |" in text and text.count("| BW |") == 1


@pytest.mark.parametrize(("split", "told"), [("", "rows | 92.9 |"), ("sst2-phrases-1", "sst2-phrases-1 | 81.5 |")])
def test_beside_text_stands_what_words_alone_reach_on_the_same_split(modules, study, tmp_path, split, told):
    texts = replace(study, networks=("sst2",), targets={})
    point = next(iter(modules["definition"].points(texts)))
    found = line_of(0.81, dataset_split=split)
    modules["cells"].append_line(tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides))
    assert f"| sst2 | {told}" in modules["page"].page(texts, tmp_path)
    assert "word-only baseline" not in modules["page"].page(study, tmp_path), "digits are no text"


def test_a_page_without_lines_shows_the_source_and_no_number_of_ours(modules, study, tmp_path):
    text = modules["page"].page(study, tmp_path)
    assert text.count("| missing |") == 2 and "| 90.50 |" in text and "no line yet" in text
    assert "*Not measured*: " in text and "`" in text.partition("*Not measured*: ")[2].partition("\n")[0]
    assert not (tmp_path / "accuracy.png").exists()


@pytest.mark.parametrize("name", MEASURED)
def test_the_pages_are_those_of_the_lines(modules, name):
    folder = FOLDER.parent / name
    drawn = (folder / "accuracy.png").exists()
    text = modules["page"].text(modules["definition"].read_study(name), folder, drawn=drawn)
    assert (folder / "README.md").read_text() == text


def test_products_name_the_sparsity_from_which_they_gain(modules, tmp_path):
    head = "family,kernel,pattern,granularity,distribution,shape,sparsity,asked_sparsity,speedup,dtype,gpu,torch,commit,date"
    own = [
        f"gathered,g,tile_wise,128,pattern,A,{s},{s},{gain},fp16,H200,2,c,2026-11-25"
        for s, gain in ((0.5, 0.9), (0.75, 1.4), (0.75, 1.2))
    ]
    dip = [
        f"gathered,g,tile_wise,64,pattern,A,{s},{s},{gain},fp16,H200,2,c,2026-11-25"
        for s, gain in ((0.5, 1.1), (0.75, 0.9))
    ]
    peer = "blocked,triton_bsr,tile_wise,128,equal,A,0.8125,0.75,2.1,fp16,H200,2,c,2026-11-25"
    (tmp_path / "products.csv").write_text("\n".join([head, *own, *dip, peer]) + "\n")
    found = list(modules["tables"].product_lines(tmp_path))
    assert found[2] == "| A | tile_wise 128 | 0.90 | 1.40 | 75 % |"
    assert found[4] == "| A | tile_wise 64 | 1.10 | 0.90 | never |", "what loses further up gains from nowhere on"
    # easier masks than the pattern's: never among its lines
    assert found[3] == "| A | tile_wise 128, triton_bsr on random masks (equal) |  | 2.10 (has 81.2 %) | 75 % |"
