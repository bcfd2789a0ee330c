"""An exported BERT is a folder that from_pretrained takes."""

import torch

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
