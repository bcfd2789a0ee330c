"""The front: its pages hold what compare.py prints of its records, and the lines of the study are accepted."""

import pytest

from experiments.front import summary
from sparsefront.config.validate import validate
from sparsefront.points import read_points
from sparsefront.results import compare
from sparsefront.results.compare_arguments import Request
from sparsefront.stages.keys import stage_keys


@pytest.fixture(scope="module")
def groups():
    return summary.groups_of([summary.RECORDS])


def test_page_holds_what_compare_prints(groups, tmp_path, capsys):
    compare.answer(Request(paths=[summary.RECORDS], out=str(tmp_path)))
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    lines = list(summary.tables(groups))
    rows = [" ".join(filter(None, line.replace("|", " ").split())) for line in lines if line.startswith("| ")]
    assert len(rows) > 10 and set(rows) <= printed
    assert f"{summary.MARKS[0]}\n\n{chr(10).join(lines).rstrip()}\n\n{summary.MARKS[1]}" in summary.PAGE.read_text()


def test_readme_holds_the_timed_lines(groups):
    table = "\n".join(summary.readme_table(groups))
    assert f"{summary.MARKS_OF_README[0]}\n\n{table}\n\n{summary.MARKS_OF_README[1]}" in summary.README.read_text()
    assert "not timed" not in table


def test_readme_counts_the_faster_dtype(groups):
    """Dense takes 4 ms in fp16 and 5 ms in bf16, sparse 3.5 and 3; blocks were timed without recovery alone."""

    def copy(pattern, **changes):
        (one,) = [run for run in groups[0].results if run.identity.run_id == "ba1a26ab8185e8fd"]
        held = {"pattern": pattern, "granularity": None, "run_id": f"{pattern}{changes}"}
        return one.with_values(held | {"pattern_parameters": {}} | changes)

    def timed(dense, sparse):
        ends = {f"speedup_dataset{end}": dense / sparse for end in ("", "_low", "_high")}
        return ends | {"latency_dense_dataset_ms": dense, "latency_sparse_dataset_ms": sparse}

    untimed = dict.fromkeys(("latency_device", "latency_sparse_ms", "speedup", "speedup_dataset"))
    bf16 = {"dtype": "bf16", "precision": "bf16"}
    results = [copy("n_m", **timed(4, 3.5)), copy("n_m", **timed(5, 3), **bf16), copy("block_wise", **untimed)]
    results += [copy("block_wise", recovery="none", recovery_steps=0, **timed(4, 3.2)), copy("channel", **untimed)]
    found = summary.timed_of(summary.split_comparable(results))
    assert {one.candidate.pattern: round(one.speedup, 3) for one in found} == {"n_m": 1.333, "block_wise": 1.25}
    (line,) = [line for line in summary.readme_table(summary.split_comparable(results)) if "blocks of" in line]
    assert "**1.25** † (1.25–1.25)" in line


@pytest.fixture(scope="module")
def text_study(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of front_imdb on 40 reviews and a BERT of twelve narrow layers."""
    from tiny_files import write_imdb
    from transformers import BertConfig, BertModel

    from sparsefront.models.bert import train_wordpiece

    folder = tmp_path_factory.mktemp("front")
    sizes = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=200, max_position_embeddings=64, **sizes)).save_pretrained(folder / "bert")
    train_wordpiece(["red green blue"], vocabulary_size=100, max_length=64).save_pretrained(folder / "bert")
    paths = [f"model.path={folder / 'bert'}", f"dataset.path={write_imdb(folder / 'imdb')}", "dataset.complete=false"]
    short = ["dataset.max_length=16", "measure.sequence_length=16", "recipe.epochs=1"]
    short += ["recipe.recovery_epochs=null", "recipe.recovery_steps=2"]
    on_cpu = ["trainer=cpu", "measure.device=cpu", "measure.latency=false", "kernel=none", "recipe.batch_size=8"]
    return ["experiment=front_imdb", *paths, *short, *on_cpu, f"cache_dir={folder / 'cache'}"]


@pytest.fixture(scope="module")
def image_study(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    from tiny_files import write_tiny_imagenet

    data = write_tiny_imagenet(tmp_path_factory.mktemp("images"))
    on_cpu = ["trainer=cpu", "measure.device=cpu", "measure.latency=false", "kernel=none"]
    return ["experiment=front_images", f"dataset.path={data}", "dataset.complete=false", *on_cpu]


@pytest.mark.parametrize(
    ("file", "settings", "more"),
    [
        ("tuning.yaml", "text_study", []),
        ("compositions.yaml", "text_study", ["kernel=auto", "measure.latency=true"]),
        ("images.yaml", "image_study", []),
    ],
)
def test_every_line_is_accepted(composed, request, file, settings, more):
    study_settings = [*request.getfixturevalue(settings), *more]
    points = [validate(composed(*study_settings, *line)) for line in read_points(summary.FRONT / file)]
    steps = {(point.recipe.epochs, point.recipe.recovery_epochs, point.recipe.recovery_steps) for point in points}
    assert steps == ({(1, None, 2)} if settings == "text_study" else {(60, 45, None), (15, 45, None)})
    assert all((point.control is None) is not point.pattern.prunes for point in points)


def test_core_lines_share_dense_and_control(composed, text_study):
    lines = read_points(summary.FRONT / "lines.yaml")
    keys = [stage_keys(validate(composed(*text_study, *line))) for line in lines]
    assert len({str(key.dense) for key in keys}) == 1
    assert len({str(key.control) for key in keys if key.control is not None}) == 1  # others have their own recipe
    assert len({str(key.result) for key in keys}) == len(lines) == 13
