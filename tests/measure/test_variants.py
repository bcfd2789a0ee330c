"""Other forms of a network: the same outputs, or the reason why there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from sparsefront.measure import attention
from sparsefront.measure.attention import BACKENDS, SUPPORT_CHECKS, WithAttentionBackend, unsupported_reason
from sparsefront.measure.variants import DoesNotApply, make_variant
from sparsefront.models.attention import SelfAttention


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        return self.two(self.one(x).relu())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SelfAttention(16, 2)

    def forward(self, x):
        return self.attention(x)


def why_not(name, net, inputs, **rest):
    with pytest.raises(DoesNotApply) as reason:
        make_variant(name, net, inputs, **rest)
    return str(reason.value)


def test_channels_last_leaves_the_network_alone():
    net, x = Convs().eval(), torch.randn(2, 3, 12, 12)
    varied = make_variant("channels_last", net, {"x": x})
    assert varied.two.weight.is_contiguous(memory_format=torch.channels_last)
    assert net.two.weight.is_contiguous() and not net.two.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(varied(x), net(x))


def test_what_does_not_apply_says_why():
    convs, attention = Convs().eval(), Attention().eval()
    image, tokens = {"x": torch.randn(1, 3, 12, 12)}, {"x": torch.randn(1, 4, 16)}
    assert "no two Linear layers" in why_not("fused_qkv", convs, image)
    assert "fewer than two convolutions" in why_not("channels_last", attention, tokens)
    assert "no fused graph" in why_not("fused_graph", attention, tokens)
    assert why_not("sdpa_flash", attention, tokens) == "needs a CUDA device"


class Masked(nn.Module):
    """Attention without a mask, and attention with one."""

    def forward(self, x, mask):
        plain = F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(plain, x, value=x, attn_mask=mask)


def test_pytorch_is_asked_which_attentions_a_backend_takes(monkeypatch):
    image = {"x": torch.randn(1, 3, 12, 12)}
    assert (
        unsupported_reason(Convs().eval(), image, "sdpa_flash") == "the network calls no scaled_dot_product_attention"
    )
    inputs = {"x": torch.randn(1, 2, 4, 8), "mask": torch.ones(1, 1, 4, 4, dtype=torch.bool)}
    answers = {"no masks": lambda call: call.attn_mask is None, "all": lambda call: True, "none": lambda call: False}
    found = {}
    for name, takes in answers.items():
        monkeypatch.setitem(attention.SUPPORT_CHECKS, "sdpa_flash", takes)
        found[name] = unsupported_reason(Masked(), inputs, "sdpa_flash")
    none = "takes no float32 attention of [1, 2, 4, 8] on this device"
    assert found == {"no masks": "takes no attention masks", "all": None, "none": none}
    assert SUPPORT_CHECKS.keys() == BACKENDS.keys()


class Seen(nn.Module):
    """Says which backends its forward pass may use."""

    def forward(self, x):
        self.flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        return F.scaled_dot_product_attention(x, x, x)


def test_a_backend_is_forced_during_the_forward_pass_only():
    net, x = Seen(), torch.randn(1, 2, 4, 8)
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    WithAttentionBackend(net, SDPBackend.MATH)(x=x)
    assert net.flags == (False, True)
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == before


def test_compiled_code_belongs_to_its_backend():
    """Two backends of one network, compiled one after the other, run what each was asked for."""
    from torch._dynamo.backends.common import aot_autograd

    called = []

    def compiler(graph, example_inputs):
        called.append({str(node.target) for node in graph.graph.nodes if "flash_attention" in str(node.target)})
        return graph.forward

    net, x = Attention().eval(), torch.randn(1, 4, 16)
    with torch.inference_mode():
        for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            compiled = torch.compile(WithAttentionBackend(net, backend), backend=aot_autograd(fw_compiler=compiler))
            torch.testing.assert_close(compiled(x=x), net(x))
    assert not called[0] and called[1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_runs_on_a_gpu(name):
    device, dtype = torch.device("cuda"), torch.float16
    net = nn.Sequential(SelfAttention(128, 2)).eval().to(device, dtype)
    x = torch.randn(2, 64, 128, device=device, dtype=dtype)
    varied = make_variant(name, WithInput(net), {"x": x})
    with torch.inference_mode():
        torch.testing.assert_close(varied(x=x), net(x), rtol=1e-2, atol=1e-2)


class WithInput(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)
