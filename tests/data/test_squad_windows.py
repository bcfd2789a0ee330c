"""Windows of tokens: no answer is lost, and every one leads back to its text."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.data.squad import NO_CONTEXT, Answer, Question, largest_stride, question_limit, question_windows
from sparsefront.data.text import EncodedText
from sparsefront.tasks.extractive_qa import text_between

# Accents as one character and as two, letters outside Latin, ideographs, a ligature, digits, signs, an emoji.
letters = st.sampled_from(
    ["a", "k", "z", "é", "e\u0301", "ñ", "Σ", "я", "中", "文", "ﬁ", "İ", "n\u0303\u0323", "7", "-", "(", "%", "😀", "'"]
)
words = st.lists(letters, min_size=1, max_size=6).map("".join)
spaces = st.sampled_from([" ", "  ", "\n", "\u00a0"])


@st.composite
def question(draw: st.DrawFn) -> Question:
    """An answer of one to three words somewhere in up to sixty."""
    parts = draw(st.lists(words, min_size=1, max_size=60))
    first = draw(st.integers(0, len(parts) - 1))
    count = draw(st.integers(1, min(3, len(parts) - first)))
    gap = draw(spaces)
    begin = len(gap.join(parts[:first]) + (gap if first else ""))
    answer = gap.join(parts[first : first + count])
    return Question("q", "which is it ?", gap.join(parts), (Answer(answer, begin),))


def windows(
    questions: list[Question], tokenizer: Any, *, training: bool, max_length: int = 64, stride: int = 24
) -> EncodedText:
    return question_windows(
        questions, tokenizer=tokenizer, max_length=max_length, stride=stride, training=training, description="windows"
    )


def rows(text: EncodedText, name: str) -> list[torch.Tensor]:
    return [text.tokens[name][begin:end] for begin, end in text.starts.unfold(0, 2, 1)]


@settings(max_examples=150)
@given(asked=question())
def test_gold_positions_lead_back_to_the_answer(asked: Question, tokenizer: Any) -> None:
    answer = asked.answers[0]
    assert asked.context[answer.start : answer.start + len(answer.text)] == answer.text
    train, evaluated = (windows([asked], tokenizer, training=training) for training in (True, False))
    assert torch.equal(train.tokens["input_ids"], evaluated.tokens["input_ids"])
    positions = torch.stack([train.columns["start_positions"], train.columns["end_positions"]], dim=1)
    held = 0
    for offsets, (first, last) in zip(rows(evaluated, "offsets"), positions.tolist(), strict=True):
        if last:
            held += 1
            assert text_between(asked.context, int(offsets[first, 0]), int(offsets[last, 1])) == answer.text
    tokens_of_answer = len(tokenizer(answer.text, add_special_tokens=False)["input_ids"])
    if tokens_of_answer <= 24:
        assert held, "an answer no longer than the overlap is whole in some window"


@settings(max_examples=50)
@given(asked=question())
def test_windows_cover_the_context_and_overlap(asked: Question, tokenizer: Any) -> None:
    text = windows([asked], tokenizer, training=False)
    spans = [offsets[offsets[:, 0] != NO_CONTEXT].tolist() for offsets in rows(text, "offsets")]
    whole = tokenizer(asked.context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    covered = spans[0] + [span for window in spans[1:] for span in window[24:]]
    assert [tuple(span) for span in covered] == whole
    assert int(text.lengths(torch.arange(len(text))).max()) <= 64
    assert all(before[-24:] == after[:24] for before, after in zip(spans, spans[1:], strict=False))


def test_worked_example(tokenizer: Any) -> None:
    asked = Question("q", "red ?", "a b c d e f g h i j k l", (Answer("g h", 12),))
    text = windows([asked], tokenizer, training=True, max_length=14, stride=3)
    decoded = [tokenizer.convert_ids_to_tokens(row) for row in rows(text, "input_ids")]
    assert ["".join(tokens) for tokens in decoded] == [
        "[CLS]red?[SEP]abcdefghi[SEP]",
        "[CLS]red?[SEP]ghijkl[SEP]",
    ]
    assert text.columns["start_positions"].tolist() == [10, 4]
    assert text.columns["end_positions"].tolist() == [11, 5]
    assert rows(text, "token_type_ids")[1].tolist() == [0] * 4 + [1] * 7


def test_answer_outside_a_window_points_to_cls(tokenizer: Any) -> None:
    asked = Question("q", "red ?", "a b c d e f g h i j k l", (Answer("b", 2),))
    text = windows([asked], tokenizer, training=True, max_length=14, stride=3)
    assert text.columns["start_positions"].tolist() == text.columns["end_positions"].tolist() == [5, 0]


def test_questions_number_their_windows(tokenizer: Any) -> None:
    long = Question("long", "red ?", "a b c d e f g h i j k l", (Answer("b", 2),))
    short = Question("short", "red ?", "a b", (Answer("b", 2),))
    text = windows([short, long, short], tokenizer, training=False, max_length=14, stride=3)
    assert text.columns["question"].tolist() == [0, 1, 1, 2]
    assert text.columns["window"].tolist() == [0, 1, 2, 3]


def test_a_question_that_leaves_no_room_is_cut(tokenizer: Any) -> None:
    asked = Question("q", "a " * 500, "b c d", (Answer("c", 2),))
    for max_length in (32, 64, 384):
        stride = largest_stride(max_length)
        text = windows([asked], tokenizer, training=True, max_length=max_length, stride=stride)
        assert len(text) == 1 and len(text.tokens["input_ids"]) == question_limit(max_length) + 3 + 3
        assert text.columns["start_positions"].tolist() == [question_limit(max_length) + 3]


def test_largest_stride_with_the_longest_question_still_advances(tokenizer: Any) -> None:
    asked = Question("q", "a " * 500, "b c d e f g h " * 10, (Answer("c", 2),))
    for max_length in (32, 64):
        text = windows([asked], tokenizer, training=False, max_length=max_length, stride=largest_stride(max_length))
        assert int(text.tokens["offsets"].max()) == len(asked.context) - 1


def test_empty_context(tokenizer: Any) -> None:
    text = windows([Question("q", "red ?", "", (Answer("", 0),))], tokenizer, training=True)
    assert text.columns["start_positions"].tolist() == text.columns["end_positions"].tolist() == [0]
