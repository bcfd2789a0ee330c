"""A tiny Llama with random weights and a tokenizer of its own, and text for it: in CI, instead of SmolLM2 and WikiText-2."""

import random
from pathlib import Path

VOCABULARY = 320
WORDS = 60


def make_llama(folder: Path, *, hidden: int = 64, tied: bool = True, positions: int = 256) -> Path:
    """Write a Llama, fp32, as `save_pretrained` does, with a byte-level tokenizer of 320 tokens."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator([make_text(0)], vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=learnt._tokenizer, eos_token=None).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_text(seed: int) -> str:
    """Eight articles of made-up words in the form of WikiText's raw files."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("abdefgiklmnoprstu") for _ in range(draw.randint(2, 7))) for _ in range(WORDS)]
    text = []
    for article in range(8):
        text.append(f" = {words[article]} {words[-article - 1]} = \n \n")
        text += [f" {' '.join(draw.choices(words, k=draw.randint(8, 20)))} . \n" for _ in range(12)]
    return "".join(text)


def make_wikitext(folder: Path) -> Path:
    """Write wiki.test.raw and wiki.valid.tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wiki.test.raw").write_text(make_text(1), encoding="utf-8")
    valid = make_text(2).replace(" d", " <unk> d", 20).replace(" a", " a @-@ a")
    (folder / "wiki.valid.tokens").write_text(valid, encoding="utf-8")
    return folder
