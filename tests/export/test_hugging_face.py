"""An exported BERT is a folder that from_pretrained takes."""

import pytest
import torch

import sparsefront as sf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_pretrained_opens_a_save(tmp_path, dtype):
    """Config, class names and tokenizer lie beside the weights, whoever built the network."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
    )

    from sparsefront.models.bert import train_wordpiece

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    names = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    net = BertForSequenceClassification(BertConfig(vocab_size=100, **sizes, **names)).eval()
    tokenizer = train_wordpiece(["red green blue"], vocabulary_size=100, max_length=32)
    masks = sf.prune(net, "n_m", 0.5, layers="bert.encoder.*", tell=len)
    net.to(dtype)
    sf.save(tmp_path / "pruned", net, masks, tokenizer=tokenizer)

    loaded, problems = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pruned", output_loading_info=True)
    assert not problems["missing_keys"] and not problems["unexpected_keys"]
    assert loaded.config.id2label == names["id2label"] and loaded.dtype == dtype
    ids = AutoTokenizer.from_pretrained(tmp_path / "pruned")("red blue", return_tensors="pt")
    with torch.inference_mode():
        assert torch.equal(loaded.eval()(**ids).logits, net(**ids).logits)
    assert sf.load(tmp_path / "pruned", loaded).keys() == masks.keys()
