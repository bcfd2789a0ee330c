"""Which layers are heads, and so stay dense by default: those that alone give an output of the network."""

import pytest
import torch
import transformers
from torch import nn

import sparsefront as sf
from experiments.networks.networks import NETWORKS, Tiny
from sparsefront.models.linears import as_linears
from sparsefront.pruning.layers import HEAD, heads
from sparsefront.tasks.plain_task import name_inputs_on


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.down, self.up = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 2, 2),
            nn.ConvTranspose2d(8, 8, 2, 2),
        )
        self.merge, self.out = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.stem(x).relu_()
        x = self.merge(torch.cat([x, self.up(self.down(x).relu())], dim=1))
        return {"logits": self.out(x.relu()), "labels": torch.zeros(1, dtype=torch.int64)}


def wav2vec2() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    convolutions = {"conv_dim": (16, 16), "conv_kernel": (3, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**sizes, **convolutions, **positions))


OWN = {
    "U-Net": Tiny("own", UNet, lambda: (torch.randn(1, 3, 8, 8),)),
    "Wav2Vec2": Tiny("transformers", wav2vec2, lambda: {"input_values": torch.randn(1, 400)}),
    "Sequential": Tiny(
        "torch", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(True), nn.Linear(8, 2)), lambda: (torch.randn(2, 4),)
    ),
}  # fmt: skip
HEADS = {
    "BERT": ["pooler.dense"],
    **dict.fromkeys(("DistilBERT", "ELECTRA", "DeBERTa-v2", "BART", "TransformerEncoder", "Swin", "Wav2Vec2"), []),
    "CLIP": ["text_projection", "visual_projection"],
    "GPT-2": ["lm_head"],
    "LSTM": ["head"],
    "DeepLabV3": ["classifier.4"],
    "U-Net": ["out"],
    "Sequential": ["2"],
    "ResNet": ["fc"],
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_alone_give_the_output(name):
    torch.manual_seed(0)
    tiny = (NETWORKS | OWN)[name]
    net, inputs = tiny.make().train(), tiny.inputs()
    as_linears(net)
    assert heads(net, name_inputs_on(net, inputs)) == HEADS[name]
    assert net.training and not any(module._forward_hooks for module in net.modules())
    for example_inputs in (inputs, None):
        masks = sf.prune(tiny.make(), "element_wise", 0.5, example_inputs=example_inputs, tell=len)
        left_out = [layer for layer, why in masks.ignored.items() if why == HEAD]
        assert left_out == HEADS[name] or (
            name == "CLIP" and left_out == HEADS[name][:1]
        )  # in module order, the last one
