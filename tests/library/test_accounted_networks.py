"""Networks of several libraries: each weight is pruned or listed with a reason, and each reason is true."""

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import sparsefront as sf
from sparsefront.models.linears import as_linears
from sparsefront.pruning.layers import READ, UNREACHED

TOKENS = {"input_ids": torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(0))}
IMAGES = (torch.randn(2, 3, 32, 32),)
SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=2, use_cache=False)
    return transformers.MixtralForCausalLM(config)


def xlnet() -> nn.Module:  # has parameters that are read only with token types
    return transformers.XLNetModel(transformers.XLNetConfig(vocab_size=64, d_model=16, n_layer=1, n_head=2, d_inner=32))


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def vit() -> nn.Module:
    return torchvision.models.VisionTransformer(32, 16, 1, 2, 16, 32, num_classes=4)


def swin() -> nn.Module:
    return timm.models.SwinTransformer(img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(1, 2))


def recurrent() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.lstm = nn.Embedding(64, 16), nn.LSTM(16, 16, batch_first=True)
            self.body, self.idle, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, input_ids):
            return self.head(self.body(self.lstm(self.tokens(input_ids))[0]))

    return Net()


NETS = {
    "Mixtral": (mixtral, TOKENS),
    "XLNet": (xlnet, TOKENS),
    "BERT": (bert, TOKENS),
    "torchvision's ViT": (vit, IMAGES),
    "timm's Swin": (swin, IMAGES),
    "an LSTM": (recurrent, TOKENS),
}


@pytest.mark.parametrize("name", NETS)
def test_each_weight_and_reason(name):
    make, inputs = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    as_linears(net)  # as sf.prune does
    called, reached = what_runs(net, inputs)
    masks = sf.prune(net, "n_m", 0.5, example_inputs=inputs, tell=len)
    listed = {**dict.fromkeys(masks, "pruned"), **masks.ignored, **masks.dense}
    for parameter, values in net.named_parameters():
        if sum(size > 1 for size in values.shape) > 1:
            assert any(f"{parameter}.".startswith(f"{one}.") for one in listed), f"{parameter} is not mentioned"
    layers = {one for one, module in net.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    for one in layers:
        is_read = f"{one}.weight" in reached
        assert (listed[one] == UNREACHED) is (one not in called and not is_read), one
        assert (listed[one] == READ) is (one not in called and is_read), one
    report = sf.swap(net, masks, inputs, kernel=sf.KernelChoice("reference", fuse=False))
    sparse = {one for one, layer in report.layers.items() if layer.is_sparse}
    assert sparse == set(masks)
    assert {**report.dense_layers, **report.others} == {**masks.ignored, **masks.dense}


def what_runs(net: nn.Module, inputs) -> tuple[set[str], set[str]]:
    """Modules that one forward calls, and parameters that its output depends on, by autograd."""
    called: set[str] = set()
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name)) for name, module in net.named_modules()
    ]
    output = net(**inputs) if isinstance(inputs, dict) else net(*inputs)
    tensors = [output] if isinstance(output, torch.Tensor) else output.to_tuple()
    sum(one.float().sum() for one in tensors if isinstance(one, torch.Tensor)).backward()
    for hook in hooks:
        hook.remove()
    reached = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    net.zero_grad()
    return called, reached
