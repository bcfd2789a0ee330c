"""Small networks of transformers that translate, with a tokenizer, as `save_pretrained` writes them."""

from pathlib import Path
from typing import Any

import torch

KINDS = {"bart": "BartForConditionalGeneration", "marian": "MarianMTModel"}
TEXTS = ["the dog is at the door", "der Hund ist an der Tür", "it is train 3", "es ist test 4"]
SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}


def make_translator(folder: Path, kind: str, **settings: Any) -> Path:
    """A network of one block on each side, with a byte-level BPE."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from tokenizers.decoders import ByteLevel

    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=290, special_tokens=tokens, initial_alphabet=alphabet)
    )
    begin = "<s> " if kind == "bart" else ""
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    named = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=64, **named).save_pretrained(folder)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIZES.items()}
    special = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "forced_eos_token_id": None}
    special["decoder_start_token_id"] = {"bart": 2, "marian": 1}[kind]
    config = {"vocab_size": 300, "d_model": 32, "max_position_embeddings": 64, "dropout": 0.0, "init_std": 0.2}
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{kind.title()}Config")
    made = config_class(**config | sizes | special | settings)
    getattr(transformers, KINDS[kind])(made).save_pretrained(folder)
    return folder
