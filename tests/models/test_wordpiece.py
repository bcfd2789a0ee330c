"""Vocabularies learnt from texts."""

import pytest

from sparsefront.models import bert
from sparsefront.models.bert import train_wordpiece


def test_same_texts_same_vocabulary_in_any_order(sentences: list[str]):
    texts = [*sentences, "ties tie tied tier", "zebra yak xylophone", "un der ne ath"]
    first = train_wordpiece(texts, vocabulary_size=150, max_length=32).get_vocab()
    for _ in range(4):
        texts = [*texts[3:], *texts[:3]]
        assert train_wordpiece(texts, vocabulary_size=150, max_length=32).get_vocab() == first


@pytest.mark.parametrize("size", [150, 2000])
def test_vocabulary_has_exactly_the_wanted_size(sentences: list[str], size: int):
    tokenizer = train_wordpiece(iter(sentences), vocabulary_size=size, max_length=32)
    assert len(tokenizer) == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert tokenizer.pad_token_id == 0


def test_texts_and_pairs_are_written_as_bert_writes_them(sentences: list[str]):
    tokenizer = train_wordpiece(sentences, vocabulary_size=500, max_length=16)
    assert tokenizer.model_max_length == 16
    encoded = tokenizer("Pruned DOG", "naive", return_offsets_mapping=True)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2 and tokens[-1] == "[SEP]"
    assert "[UNK]" not in tokens
    first = tokens.index("[SEP]") + 1
    assert encoded["token_type_ids"] == [0] * first + [1] * (len(tokens) - first)
    assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == "pruned dog naive"
    assert "[UNK]" in tokenizer.tokenize("漢")


def test_inner_pieces_are_ordinary_tokens(sentences: list[str]):
    tokenizer = train_wordpiece(sentences, vocabulary_size=500, max_length=16)
    assert set(tokenizer.all_special_tokens) == set(bert.SPECIAL)
    assert tokenizer.tokenize("##a") == ["[UNK]", "[UNK]", "a"]  # the text "##a" is not the piece "##a"
    pieces = [token for token in tokenizer.get_vocab() if token.startswith("##")]
    assert pieces and not any(piece in ("##.", "##,", "##!") for piece in pieces)


def test_rare_characters_are_dropped(sentences: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bert, "LARGEST_ALPHABET", 12)
    tokenizer = train_wordpiece([*sentences, "q"], vocabulary_size=100, max_length=16)
    single = [token for token in tokenizer.get_vocab() if len(token) == 1]
    assert len(single) == 12 and "e" in single and "q" not in single
