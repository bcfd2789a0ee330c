"""A WordPiece vocabulary learnt from texts, for a BERT without pretrained weights."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparsefront import progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertTokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LARGEST_ALPHABET = 1000


def train_wordpiece(texts: Iterable[str], *, vocabulary_size: int, max_length: int) -> "BertTokenizer":
    """A fast, lower-casing BERT tokenizer with exactly `vocabulary_size` tokens; [PAD] is token 0.

    The same texts, in any order, give the same tokens and numbers. Where the texts yield fewer tokens, the rest is
    filled with [unused0], [unused1], ... as in BERT's own vocabulary, so that every row of embeddings has its token.

    Args:
        max_length: the most tokens that the network takes.
    """
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertTokenizer

    texts = list(texts)
    tokenizer = _untrained()
    alphabet = _alphabet(texts, tokenizer)
    # The trainer numbers the inner pieces ("##a") in the order of a hash table that differs from run to run, and breaks
    # ties between merges by these numbers. Handing them over as special tokens fixes the numbers beforehand; only the
    # vocabulary is kept from this tokenizer, so they are never used as special.
    inner = [f"##{character}" for character in alphabet if _continues_words(character, tokenizer)]
    trainer = WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[*SPECIAL, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=progress.shown(),
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    vocabulary = tokenizer.get_vocab()
    vocabulary |= {f"[unused{i}]": len(vocabulary) + i for i in range(vocabulary_size - len(vocabulary))}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=max_length)


def _untrained() -> "Tokenizer":
    """BERT's cleaning and splitting of text, without a vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _alphabet(texts: list[str], tokenizer: "Tokenizer") -> list[str]:
    """The most frequent characters of the cleaned texts in order of code points; rarer ones become [UNK]."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    cleaned: Counter[str] = Counter()
    for character, count in raw.items():
        for part in tokenizer.normalizer.normalize_str(character):
            if not part.isspace():
                cleaned[part] += count
    ranked = sorted(cleaned, key=lambda character: (-cleaned[character], character))
    return sorted(ranked[:LARGEST_ALPHABET])


def _continues_words(character: str, tokenizer: "Tokenizer") -> bool:
    """Whether the character can stand inside a word; punctuation and Chinese characters are words of their own."""
    cleaned = tokenizer.normalizer.normalize_str(f"a{character}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(cleaned)) == 1
