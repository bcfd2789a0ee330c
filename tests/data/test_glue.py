"""GLUE: every task's own layout, and the hub."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sparsefront.data.glue import GLUE_TASKS, Glue, GlueRow, read_tsv
from sparsefront.errors import InvalidSetting


@pytest.mark.parametrize("task", GLUE_TASKS)
def test_original_layout(task: str, tiny: Any, opened: Any, tokenizer: Any) -> None:
    settings = tiny("glue", task=task)
    settings.check()
    layout = GLUE_TASKS[task]
    rows = read_tsv(settings.files()["train"], layout)
    second = None if layout.second is None else "the train 1 is it"
    assert rows[1] == GlueRow('green "train 1', second, 1 if layout.label_names else 4.25)
    assert settings.info.num_classes == {"mnli": 3, "stsb": 1}.get(task, 2)
    names = {"sst2": ("negative", "positive"), "mnli": ("entailment", "neutral", "contradiction"), "stsb": ()}
    assert settings.info.class_names == names.get(task, settings.info.class_names)
    assert settings.info.num_classes == 1 or not {"0", "1"} & set(settings.info.class_names), "names, not numbers"

    data = opened(settings)
    data.setup()
    assert [len(data.part(split)) for split in ("train", "val", "test")] == [36, 4, 12]
    batch = data.part("test").__getitems__([1, 0])
    assert batch["labels"].tolist() == ([1, 0] if layout.label_names else [4.25, 0.5])
    assert batch["labels"].dtype == (torch.int64 if layout.label_names else torch.float32)
    text = tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
    assert text.startswith("green") and ("is it" in text) == (layout.second is not None)
    assert bool(batch["token_type_ids"].any()) == (layout.second is not None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no label here", "line 2 has 1 fields, 2 are needed"),
        ("fine\tpositive", "line 2.*label 'positive' is none of SST-2's: 0, 1"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text(f"sentence\tlabel\n{line}\n")
    with pytest.raises(InvalidSetting, match=message):
        read_tsv(tmp_path / "train.tsv", GLUE_TASKS["sst2"])


@pytest.mark.parametrize(("part", "split"), [("train", "train"), ("dev", "test")])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\nplain\t1\ncaf\xe9\t0\n".encode("latin-1"), r"line 3 is not UTF-8 \(byte 0xe9\).*iconv"),
        ("sentence\tlabel\nplain\t1\n".encode("utf-16"), "is UTF-16, not UTF-8.*iconv"),
        (b"sentence\tlabel\n", "has no rows, only a header"),
    ],
    ids=["latin-1", "utf-16", "header alone"],
)
def test_unusable_file_is_named(tiny: Any, opened: Any, part: str, split: str, content: bytes, message: str):
    settings = tiny("glue")
    file = settings.files()[part]
    file.write_bytes(content)
    with pytest.raises(InvalidSetting, match=f"^(dataset.)?path={file}: .*{message}") as rejected:
        settings.check()
        opened(settings).part(split)
    assert "\n" not in str(rejected.value)


def test_another_tasks_files(tiny: Any) -> None:
    mrpc = f"{tiny('glue', task='mrpc').path}/MRPC"
    with pytest.raises(InvalidSetting, match="no column sentence, label: not the original GLUE layout of SST-2"):
        Glue(task="sst2", path=mrpc).check()
    with pytest.raises(InvalidSetting, match="layout of CoLA"):
        Glue(task="cola", path=f"{tiny('glue', task='sst2').path}/SST-2").check()


def test_hub_is_asked_once(hub: Any, opened: Any) -> None:
    from datasets import Dataset

    rows = [
        {"premise": f"the {number}", "hypothesis": "it is", "label": number % 3, "idx": number} for number in range(12)
    ]
    hub.rows = lambda split: Dataset.from_list(rows)
    settings = Glue(task="mnli", revision="abc")
    opened(settings).setup()
    assert hub.asked == [("nyu-mll/glue", "mnli", "abc", split) for split in ("train", "validation_matched")]
    hub.reachable = False
    data = opened(settings)
    data.setup()
    assert len(hub.asked) == 2
    assert data.part("test").text.columns["labels"].tolist() == [0, 1, 2] * 4


def test_hub_out_of_reach(hub: Any, opened: Any, tmp_path: Path) -> None:
    hub.reachable = False
    with pytest.raises(
        InvalidSetting, match="cannot be reached .no route.; set dataset.path to a folder with the original GLUE"
    ):
        opened(Glue()).setup()
    assert not list((tmp_path / "cache").rglob("*.jsonl"))
