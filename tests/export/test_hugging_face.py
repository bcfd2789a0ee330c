"""An exported BERT is a folder that from_pretrained takes."""

import pytest
import torch

import sparsefront as sf
from sparsefront.data.base import DataInfo
from sparsefront.export.checkpoint import read_export, write_export
from sparsefront.models.bert import Bert
from sparsefront.patterns.tile_wise import TileWise


def test_from_pretrained_loads_the_zeros(tmp_path):
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = Bert(size="tiny")
    net = model.build(DataInfo("sequence_classification", 3, sequence_length=32)).eval()
    masks = {}
    for name in model.prunable(net):
        weight = net.get_submodule(name).weight.data
        masks[name] = TileWise(32).mask(weight.abs(), 0.75)
        weight.mul_(masks[name])
    write_export(tmp_path, net, masks, pattern=TileWise(32), sparsity=0.75, model=model)

    loaded, problems = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not problems["missing_keys"] and not problems["unexpected_keys"]
    ids = torch.randint(0, 8192, (2, 16))
    with torch.inference_mode():
        torch.testing.assert_close(loaded.eval()(input_ids=ids).logits, net(input_ids=ids).logits, rtol=0, atol=0)
    for name, mask in read_export(tmp_path).masks.items():
        assert (loaded.get_submodule(name).weight[~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_pretrained_opens_what_the_library_saved(tmp_path, dtype):
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
