"""Questions of SQuAD v1.1, from its JSON files or from the hub, and how they share a window with their context."""

import json
from dataclasses import dataclass
from pathlib import Path

from sparsefront.datasets.download import hub_split
from sparsefront.errors import InvalidSetting

HUB_ID = "rajpurkar/squad"


@dataclass(frozen=True)
class Answer:
    """A stretch of the context: its text and the number of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, the paragraph that answers it, and every answer that an annotator gave (one in train)."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read_squad(file: Path) -> list[Question]:
    """All questions of a file in the form of SQuAD v1.1.

    Raises:
        InvalidSetting: another form, or a question without an answer (SQuAD 2.0), which v1.1 does not have.
    """
    try:
        paragraphs = [part for article in json.loads(file.read_bytes())["data"] for part in article["paragraphs"]]
        questions = [_question(part["context"], asked) for part in paragraphs for asked in part["qas"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSetting(
            "path", file, f"not in the form of SQuAD v1.1 ({type(error).__name__}: {error})"
        ) from error
    if not questions:
        raise InvalidSetting("path", file, "has no question")
    for question in questions:
        if not question.answers:
            raise InvalidSetting("path", file, f"question {question.id} has no answer: SQuAD v1.1 is needed, not 2.0")
    return questions


def _question(context: str, asked: dict) -> Question:
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in asked["answers"])
    return Question(asked["id"], asked["question"], context, answers)


def write_hub_squad(file: Path, *, part: str, revision: str) -> None:
    """Download `part` (`train` or `dev`) and write it to `file` in the form that `read_squad` reads."""
    rows = hub_split(
        HUB_ID,
        config=None,
        revision=revision,
        split="train" if part == "train" else "validation",
        missing="set dataset.path to a folder with train*.json and dev*.json of SQuAD v1.1",
    )
    by_context: dict[str, list[dict]] = {}
    for row in rows:
        found = row["answers"]
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(found["text"], found["answer_start"], strict=True)
        ]
        by_context.setdefault(row["context"], []).append(
            {"id": row["id"], "question": row["question"], "answers": answers}
        )
    paragraphs = [{"context": context, "qas": asked} for context, asked in by_context.items()]
    article = {"title": HUB_ID, "paragraphs": paragraphs}
    file.write_text(json.dumps({"version": "1.1", "data": [article]}, ensure_ascii=False), encoding="utf-8")


SPECIAL_TOKENS = 4
"""The most that a tokenizer adds to a pair."""


def question_limit(max_length: int) -> int:
    """Tokens of a question that are kept; a few questions are longer and would leave no room for their context."""
    return min(64, max_length // 3)


def largest_stride(max_length: int) -> int:
    """The overlap that still lets every window advance by a token, after the longest question that is kept."""
    return max_length - question_limit(max_length) - SPECIAL_TOKENS - 1
