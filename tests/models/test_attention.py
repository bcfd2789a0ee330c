"""Separate projections compute what nn.MultiheadAttention computes."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import ShiftedWindowAttention
from torchvision.models.vision_transformer import VisionTransformer

from sparsefront.models.attention import (
    SelfAttention,
    SplitAttention,
    WindowAttention,
    replace_multihead_attention,
    split_multihead_attention,
    split_packed_projections,
)
from sparsefront.models.linears import as_linears
from sparsefront.patterns.width import find_ties


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def small_torchvision_vit() -> VisionTransformer:
    net = VisionTransformer(
        image_size=32, patch_size=16, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=96, num_classes=5
    )
    nn.init.normal_(net.heads.head.weight)  # torchvision starts it at zero, and zeros agree with everything
    for module in net.modules():
        if isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_bias)
            nn.init.normal_(module.out_proj.bias)
    return net


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["fp32", "fp64"])
def test_split_attention_equals_the_packed_one(training: bool, bias: bool, dtype: torch.dtype, tolerance: float):
    torch.manual_seed(0)
    packed = nn.MultiheadAttention(48, 6, bias=bias, batch_first=True, dtype=dtype).train(training)
    x = torch.randn(3, 11, 48, dtype=dtype)
    split = split_multihead_attention(packed)
    assert split.training == training
    with torch.no_grad():
        assert relative_error(split(x, x, x)[0], packed(x, x, x, need_weights=False)[0]) < tolerance


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_torchvision_vit_keeps_its_outputs_to_1e_6(training: bool):
    torch.manual_seed(0)
    net = small_torchvision_vit().train(training)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected = net(x)
        replaced = replace_multihead_attention(net)
        assert relative_error(net(x), expected) < 1e-6
    assert replaced == [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(3)]
    assert not any(isinstance(module, nn.MultiheadAttention) for module in net.modules())
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    assert {tie.attention for tie in find_ties(net, layers)} >= set(replaced)  # whole heads can be pruned


def test_every_projection_is_called_in_inference():
    net = small_torchvision_vit().eval()
    replace_multihead_attention(net)
    called = []
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear) and "self_attention" in name:
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    with torch.inference_mode():
        net(torch.randn(2, 3, 32, 32))
    assert len(called) == len(set(called)) == 3 * 4


def test_packed_checkpoint_loads_into_split_network_and_split_one_stays():
    torch.manual_seed(0)
    net = small_torchvision_vit().eval()
    packed = net.state_dict()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = net(x)
        other = small_torchvision_vit().eval()
        replace_multihead_attention(other)
        split = split_packed_projections(packed)
        other.load_state_dict(split)
        assert relative_error(other(x), expected) < 1e-6
    assert split_packed_projections(split).keys() == split.keys()
    assert not any("in_proj" in key or "out_proj" in key for key in split)


def test_only_packed_attention_is_renamed():
    weights = {"decoder.out_proj.weight": torch.zeros(2, 2), "out_proj.bias": torch.zeros(2)}
    assert split_packed_projections(weights).keys() == weights.keys()


def test_module_shared_by_two_parents_stays_shared():
    shared = nn.MultiheadAttention(8, 2, batch_first=True)
    net = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    assert replace_multihead_attention(net) == ["a.0", "b.0"]
    assert net["a"][0] is net["b"][0]
    assert isinstance(net["a"][0], SplitAttention)


def test_what_cannot_be_split_is_rejected():
    with pytest.raises(ValueError, match="no added keys"):
        split_multihead_attention(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    with pytest.raises(ValueError, match="3 heads"):
        SelfAttention(8, 3)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {}, {"batch_first": True, "kdim": 12, "vdim": 20}],
    ids=["batch", "time", "widths"],
)
def test_every_way_of_calling_attention(options: dict, need_weights: bool):
    torch.manual_seed(0)
    packed = nn.MultiheadAttention(16, 4, **options).eval()
    split = split_multihead_attention(packed)
    query, key = torch.randn(3, 5, 16), torch.randn(3, 7, packed.kdim)
    value = torch.randn(3, 7, packed.vdim)
    padding = torch.arange(7) >= torch.tensor([[7], [4], [2]])
    hidden = torch.rand(5, 7) < 0.3
    hidden[:, 0] = False
    calls = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": hidden},
        {"attn_mask": torch.randn(12, 5, 7), "key_padding_mask": padding},
        {"average_attn_weights": False},
        {"attn_mask": torch.ones(5, 7).triu(1).bool(), "is_causal": True},
    ]
    lies = (lambda x: x) if packed.batch_first else (lambda x: x.transpose(0, 1))
    with torch.no_grad():
        for call in calls:
            given = (*map(lies, (query, key, value)),)
            expected = packed(*given, need_weights=need_weights, **call)
            found = split(*given, need_weights=need_weights, **call)
            assert relative_error(found[0], expected[0]) < 1e-6
            assert (found[1] is None) == (expected[1] is None) == (not need_weights)
            assert not need_weights or relative_error(found[1], expected[1]) < 1e-6
        alone = (query[0], key[0], value[0])
        found, expected = (
            part(*alone, key_padding_mask=padding[1], need_weights=need_weights) for part in (split, packed)
        )
        assert relative_error(found[0], expected[0]) < 1e-6
        assert not need_weights or relative_error(found[1], expected[1]) < 1e-6


@pytest.mark.parametrize("size", [(8, 8), (7, 10), (4, 9), (3, 3)])
@pytest.mark.parametrize("shift", [0, 2])
def test_windows_of_swin_through_linears_that_are_called(size: tuple[int, int], shift: int):
    torch.manual_seed(0)
    given = ShiftedWindowAttention(16, [4, 4], [shift, shift], 2).eval()
    nn.init.normal_(given.relative_position_bias_table)
    net = nn.Sequential(given)
    x = torch.randn(2, *size, 16)
    with torch.no_grad():
        expected = net(x)
        assert as_linears(net) == ["0"] and isinstance(net[0], WindowAttention)
        assert relative_error(net(x), expected) < 1e-6
    assert net[0].state_dict().keys() == given.state_dict().keys()
