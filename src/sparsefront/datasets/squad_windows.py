"""Questions and their contexts as overlapping windows of tokens.

    context      a b c d e f g h i j
    window 0     CLS question SEP a b c d e f SEP
    window 1     CLS question SEP e f g h i j SEP          stride = 2: two tokens are in both

An answer that a window cuts is whole in its neighbor, unless it is longer than the overlap.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from sparsefront.datasets.encoded_text import EncodedText
from sparsefront.datasets.sentence_tokens import row_starts
from sparsefront.datasets.squad_json import Answer, Question, question_limit
from sparsefront.progress import bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHUNK = 200
"""Questions between two steps of the progress bar."""
NO_CONTEXT = -1
"""Offset of tokens that cannot be part of an answer: the question and the separators."""


def question_windows(
    questions: Sequence[Question],
    *,
    tokenizer: "PreTrainedTokenizerFast",
    max_length: int,
    stride: int,
    training: bool,
    description: str,
) -> EncodedText:
    """All windows of all questions, in their order.

    Args:
        max_length: tokens of a window.
        stride: context tokens that a window shares with the next, at most `largest_stride(max_length)`.
        training: rows then hold `start_positions` and `end_positions`, the first and last token of the first answer,
            or twice 0 (CLS) where the window does not hold it whole. Otherwise they hold `window` and `question`, both
            counted from 0, and tokens hold `offsets`: int32 [tokens, 2], characters [begin, end) of the context that a
            token stands for, `NO_CONTEXT` where it stands for none.
        description: before the progress bar.
    Source: Devlin et al., "BERT", 2019, section 4.2 and its public code; here `stride` is the overlap of two windows,
    as in transformers, where that code counts the step between them.
    """
    ids, types, offsets = [], [], []
    asked: list[int] = []
    positions: list[tuple[int, int]] = []
    with bar(total=len(questions), description=description, unit="question") as shown:
        for begin in range(0, len(questions), CHUNK):
            chunk = questions[begin : begin + CHUNK]
            encoding = tokenizer(
                _shortened([question.text for question in chunk], tokenizer, question_limit(max_length)),
                [question.context for question in chunk],
                truncation="only_second",
                max_length=max_length,
                stride=stride,
                return_overflowing_tokens=True,
            )
            for window, sample in zip(encoding.encodings, encoding["overflow_to_sample_mapping"], strict=True):
                in_context = np.asarray([sequence == 1 for sequence in window.sequence_ids])
                spans = np.where(in_context[:, None], np.asarray(window.offsets, dtype=np.int32), np.int32(NO_CONTEXT))
                ids.append(np.asarray(window.ids, dtype=np.int32))
                types.append(np.asarray(window.type_ids, dtype=np.uint8))
                asked.append(begin + sample)
                if training:
                    positions.append(answer_positions(spans, chunk[sample].answers[0]))
                else:
                    offsets.append(spans)
            shown.update(len(chunk))

    tokens = {
        "input_ids": torch.from_numpy(np.concatenate(ids)),
        "token_type_ids": torch.from_numpy(np.concatenate(types)),
    }
    if training:
        begins, ends = torch.tensor(positions).unbind(1)
        columns = {"start_positions": begins.contiguous(), "end_positions": ends.contiguous()}
    else:
        tokens["offsets"] = torch.from_numpy(np.concatenate(offsets))
        columns = {"window": torch.arange(len(asked)), "question": torch.tensor(asked)}
    return EncodedText(tokens, row_starts([len(row) for row in ids]), columns)


def answer_positions(offsets: np.ndarray, answer: Answer) -> tuple[int, int]:
    """First and last token of an answer in one window, or (0, 0) where it is not whole there.

    Args:
        offsets: [tokens, 2], `NO_CONTEXT` outside the context.
    """
    context = np.flatnonzero(offsets[:, 0] != NO_CONTEXT)
    begin, end = _visible(answer)
    if len(context) == 0 or offsets[context[0], 0] > begin or offsets[context[-1], 1] < end:
        return 0, 0
    first = np.searchsorted(offsets[context, 1], begin, side="right")  # the first token that ends behind its beginning
    last = np.searchsorted(offsets[context, 0], end, side="left") - 1  # the last token that begins before its end
    return (int(context[first]), int(context[last])) if first <= last else (0, 0)


def _visible(answer: Answer) -> tuple[int, int]:
    """First character of an answer, and the one behind it, without those at its ends that tokenizers pass over.

    No token reaches as far as a space or an accent that is a character of its own, so at the end of a window an answer
    with one behind it would seem to be cut.
    """
    begin, end = 0, len(answer.text)
    while begin < end and _passed_over(answer.text[begin]):
        begin += 1
    while begin < end and _passed_over(answer.text[end - 1]):
        end -= 1
    return answer.start + begin, answer.start + end


def _passed_over(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Mn", "Cc", "Cf")  # accents, control, joiners


def _shortened(texts: list[str], tokenizer: "PreTrainedTokenizerFast", limit: int) -> list[str]:
    """The texts, those of more than `limit` tokens cut behind that many."""
    encoding = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    return [
        text[: spans[limit - 1][1]] if len(spans) > limit else text
        for text, spans in zip(texts, encoding["offset_mapping"], strict=True)
    ]
