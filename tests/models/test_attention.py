"""Separate projections compute what nn.MultiheadAttention computes."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision.models.swin_transformer import ShiftedWindowAttention
from transformers import MPNetConfig, MPNetForSequenceClassification

from sparsefront.models.attention import WindowAttention, fuse_attention, split_multihead_attention
from sparsefront.models.linears import as_linears


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["fp32", "fp64"])
def test_split_attention_equals_packed(training: bool, bias: bool, dtype: torch.dtype, tolerance: float):
    torch.manual_seed(0)
    packed = nn.MultiheadAttention(48, 6, bias=bias, batch_first=True, dtype=dtype).train(training)
    x = torch.randn(3, 11, 48, dtype=dtype)
    split = split_multihead_attention(packed)
    assert split.training == training
    with torch.no_grad():
        assert relative_error(split(x, x, x)[0], packed(x, x, x, need_weights=False)[0]) < tolerance


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
def test_windows_of_swin(size: tuple[int, int], shift: int):
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


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize(("training", "dropout"), [(True, 0.0), (False, 0.1)], ids=["training", "evaluation"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fused_attention_of_mpnet(device: str, training: bool, dropout: float, padded: bool):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    net = MPNetForSequenceClassification(MPNetConfig(vocab_size=50, **sizes, **rates)).to(device).train(training)
    nn.init.normal_(net.mpnet.encoder.relative_attention_bias.weight)
    ids = torch.randint(5, 50, (4, 16), device=device)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 9:] = mask[3, 1:] = 0

    def run() -> list[Tensor]:
        net.zero_grad()
        logits = net(input_ids=ids, attention_mask=mask).logits
        (logits**2).sum().backward()
        return [logits, *(one.grad for one in net.parameters() if one.grad is not None)]

    plain = run()
    assert len(plain) > 50
    with fuse_attention(net):
        assert "forward" in vars(net.mpnet.encoder.layer[2].attention.attn)
        fused = run()
        states = net(input_ids=ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        assert len(tree_leaves((states.hidden_states, states.attentions))) == 4 + 3
    assert not any("forward" in vars(part) for part in net.modules())
    for ours, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
