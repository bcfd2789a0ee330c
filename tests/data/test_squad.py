"""SQuAD's files, its held-out paragraphs, and the hub.

Windows of tokens: no answer is lost, and every one leads back to its text.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsefront.data.squad import Answer, Question, Squad, question_windows, read_squad
from sparsefront.data.text import EncodedText
from sparsefront.errors import InvalidSetting


def test_answers_in_their_windows(tiny: Any, opened: Any, tokenizer: Any) -> None:
    data = opened(tiny("squad"))
    part, questions = data.part("train"), data.source.questions("train")
    batch = part.__getitems__(list(range(len(part))))
    found = []
    for ids, first, last in zip(batch["input_ids"], batch["start_positions"], batch["end_positions"], strict=True):
        if last:
            found.append(tokenizer.decode(ids[first : last + 1]).replace(" ,", ","))
    assert {text.replace(" ", "") for text in found} == {q.answers[0].text.replace(" ", "") for q in questions}
    assert len(part) > len(questions), "the paragraphs are longer than a window"


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


def test_questions_of_the_hub(hub: Any, opened: Any, tiny: Any) -> None:
    from datasets import Dataset

    local = tiny("squad")
    files = local.files()

    def rows(split: str) -> Dataset:
        questions = [
            {
                "id": q.id,
                "title": q.context,  # each paragraph is an article, as the local file is divided
                "context": q.context,
                "question": q.text,
                "answers": {"text": [a.text for a in q.answers], "answer_start": [a.start for a in q.answers]},
            }
            for q in read_squad(files["train" if split == "train" else "dev"])
        ]
        return Dataset.from_list(questions)

    hub.rows = rows
    from_hub = opened(Squad(max_length=40, stride=8)).source
    for split in ("train", "val", "test"):
        questions = [replace(question, article=0) for question in from_hub.questions(split)]
        assert questions == opened(local).source.questions(split)
    assert {asked[:3] for asked in hub.asked} == {("rajpurkar/squad", None, "main")}


def windows(
    questions: list[Question], tokenizer: Any, *, training: bool, max_length: int = 64, stride: int = 24
) -> EncodedText:
    return question_windows(
        questions, tokenizer=tokenizer, max_length=max_length, stride=stride, training=training, description="windows"
    )


def rows(text: EncodedText, name: str) -> list[torch.Tensor]:
    return [text.tokens[name][begin:end] for begin, end in text.starts.unfold(0, 2, 1)]


def test_worked_example(tokenizer: Any) -> None:
    asked = Question("q", "red ?", "a b c d e f g h i j k l", (Answer("g h", 12),))
    text = windows([asked], tokenizer, training=True, max_length=14, stride=3)
    decoded = [tokenizer.convert_ids_to_tokens(row) for row in rows(text, "input_ids")]
    assert ["".join(tokens) for tokens in decoded] == ["[CLS]red?[SEP]abcdefghi[SEP]", "[CLS]red?[SEP]ghijkl[SEP]"]
    assert text.columns["start_positions"].tolist() == [10, 4]
    assert text.columns["end_positions"].tolist() == [11, 5]
    assert rows(text, "token_type_ids")[1].tolist() == [0] * 4 + [1] * 7


def test_folders_that_leave_a_doubt(tiny: Any) -> None:
    settings = tiny("squad")
    (Path(settings.path) / "train-more.json").write_text("{}")
    with pytest.raises(InvalidSetting, match="holds 2 files train.*dataset.train_file"):
        settings.check()
    (Path(settings.path) / "dev-v1.1.json").unlink()
    with pytest.raises(InvalidSetting, match="holds 0 files dev"):
        Squad(path=settings.path, train_file=f"{settings.path}/train-v1.1.json").check()
