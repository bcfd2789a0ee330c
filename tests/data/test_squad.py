"""SQuAD's files, its held-out paragraphs, and the hub."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparsefront.data import download
from sparsefront.data.squad import Answer, Question, Squad, answerable, read_squad
from sparsefront.errors import InvalidSetting


def test_no_held_out_paragraph_is_trained_on(tiny: Any, opened: Any) -> None:
    source = opened(tiny("squad")).source
    contexts = {split: {question.context for question in source.questions(split)} for split in ("train", "val")}
    assert len(contexts["train"]) == 18 and len(contexts["val"]) == 2
    assert not contexts["train"] & contexts["val"]
    assert len(source.questions("test")) == 12


def test_answers_are_found_in_their_windows(tiny: Any, opened: Any, tokenizer: Any) -> None:
    data = opened(tiny("squad"))
    part, questions = data.part("train"), data.source.questions("train")
    batch = part.__getitems__(list(range(len(part))))
    found = []
    for ids, first, last in zip(batch["input_ids"], batch["start_positions"], batch["end_positions"], strict=True):
        if last:
            found.append(tokenizer.decode(ids[first : last + 1]).replace(" ,", ","))
    assert {text.replace(" ", "") for text in found} == {q.answers[0].text.replace(" ", "") for q in questions}
    assert len(part) > len(questions), "the paragraphs are longer than a window"


def test_files_by_name(tiny: Any, tmp_path: Path) -> None:
    folder = Path(tiny("squad").path)
    named = Squad(train_file=str(folder / "train-v1.1.json"), dev_file=str(folder / "dev-v1.1.json"))
    named.check()
    assert named.content() == Squad(path=str(folder)).content()
    with pytest.raises(InvalidSetting, match="dev_file=None: set it too, or set dataset.path"):
        Squad(train_file=str(folder / "train-v1.1.json")).check()
    with pytest.raises(InvalidSetting, match="dev_file=/no.json: does not exist; set dataset.dev_file"):
        Squad(path=str(folder), dev_file="/no.json").check()


def test_folders_that_leave_a_doubt(tiny: Any) -> None:
    settings = tiny("squad")
    (Path(settings.path) / "train-more.json").write_text("{}")
    with pytest.raises(InvalidSetting, match="holds 2 files train.*dataset.train_file"):
        settings.check()
    (Path(settings.path) / "dev-v1.1.json").unlink()
    with pytest.raises(InvalidSetting, match="holds 0 files dev"):
        Squad(path=settings.path, train_file=f"{settings.path}/train-v1.1.json").check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "not in the form of SQuAD v1.1 .JSONDecodeError"),
        ('{"rows": []}', "not in the form of SQuAD v1.1 .KeyError: 'data'"),
        (
            json.dumps(
                {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q7", "question": "?", "answers": []}]}]}]}
            ),
            "question q7 has no answer: SQuAD v1.1 is needed, not 2.0",
        ),
    ],
)
def test_files_of_another_form(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(InvalidSetting, match=message):
        read_squad(tmp_path / "train.json")


CONTEXT = "Zoë and Jürgen met in Łódź; in 1999 they moved to Paris, and later to Paris."
PARIS = CONTEXT.index("Paris")


@pytest.mark.parametrize(
    "start",
    [PARIS + 1, len(CONTEXT.encode().partition(b"Paris")[0]), -1, 10_000, str(PARIS), None, CONTEXT.rindex("Paris")],
)
def test_answers_elsewhere_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, start: object) -> None:
    """A few are counted in a warning; where they are most, the file is refused."""
    questions = [Question(f"{row}", "where to?", CONTEXT, (Answer("Paris", PARIS),)) for row in range(3)]
    other = replace(questions[0], answers=(Answer("Paris", start),))
    if start == CONTEXT.rindex("Paris"):
        assert answerable([*questions, other], tmp_path) == [*questions, other] and not caplog.text
        return
    assert answerable([*questions, other], tmp_path) == questions
    assert "the answers of 1 of 4 questions do not stand at their answer_start" in caplog.text
    two = replace(other, answers=(*other.answers, Answer("Paris", PARIS)))
    assert answerable([two], tmp_path)[0].answers == two.answers[1:]
    with pytest.raises(InvalidSetting, match="path=.*: the answers of 3 of 6 questions"):
        answerable([*questions, *[other] * 3], tmp_path)


@pytest.mark.parametrize(("key", "value"), [("stride", 316), ("stride", -1), ("max_length", 31)])
def test_settings_out_of_range(key: str, value: int) -> None:
    with pytest.raises(InvalidSetting, match=f"{key}={value}"):
        Squad(**{key: value})


def test_hub_rows_become_the_same_questions(monkeypatch: pytest.MonkeyPatch, opened: Any, tiny: Any) -> None:
    import datasets
    from huggingface_hub import constants

    local = tiny("squad")
    files = local.files()

    def load(hub_id: str, config: None, *, revision: str, split: str) -> datasets.Dataset:
        assert (hub_id, config, revision) == ("rajpurkar/squad", None, "main")
        rows = [
            {
                "id": q.id,
                "title": q.context,  # each paragraph is an article, as the local file is divided
                "context": q.context,
                "question": q.text,
                "answers": {"text": [a.text for a in q.answers], "answer_start": [a.start for a in q.answers]},
            }
            for q in read_squad(files["train" if split == "train" else "dev"])
        ]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *_, timeout: open("/dev/null"))
    from_hub = opened(Squad(max_length=40, stride=8)).source
    for split in ("train", "val", "test"):
        questions = [replace(question, article=0) for question in from_hub.questions(split)]
        assert questions == opened(local).source.questions(split)


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_file_without_questions(tiny: Any, opened: Any, part: str) -> None:
    settings = tiny("squad")
    file = settings.files()[part]
    file.write_text(json.dumps({"data": []}))
    with pytest.raises(InvalidSetting, match=f"^dataset.path={file}: has no question"):
        opened(settings).setup()
