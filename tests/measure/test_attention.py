"""Attention for timing: masks that mask nothing are left out, one backend is forced, and the math path is named."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertModel, ViTConfig, ViTModel, masking_utils

from sparsefront.measure import execution_mode
from sparsefront.measure.attention import (
    BACKENDS,
    SUPPORT_CHECKS,
    WithAttentionBackend,
    explain_refusal,
    math_path_report,
    without_full_masks,
)
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.measure.variants import make_variant
from sparsefront.models.attention import SelfAttention

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CPU = torch.device("cpu")


@pytest.fixture
def masks_of(monkeypatch):
    """The masks that attention was given in a call; the network takes itself for one that is recorded."""
    monkeypatch.setattr(masking_utils, "is_tracing", lambda tensor=None: True)

    def given(call):
        masks, real = [], F.scaled_dot_product_attention

        def watched(*args, attn_mask=None, **more):
            masks.append(attn_mask)
            return real(*args, attn_mask=attn_mask, **more)

        with monkeypatch.context() as patched:
            patched.setattr(F, "scaled_dot_product_attention", watched)
            call()
        return masks

    return given


def bert(**more):
    inputs = {"input_ids": torch.arange(26).reshape(2, 13), "attention_mask": torch.ones(2, 13, dtype=torch.long)}
    return BertModel(BertConfig(vocab_size=50, attn_implementation="sdpa", **SMALL)).eval(), inputs | more


def vit():
    """Of 17 tokens; releases of transformers before 5.20 ask whether they are recorded, mask or not."""
    net = ViTModel(ViTConfig(image_size=16, patch_size=4, attn_implementation="sdpa", **SMALL)).eval()
    return net, {"pixel_values": torch.randn(2, 3, 16, 16)}


@pytest.fixture
def of_before(monkeypatch):
    """transformers 5.17 on masks that are none."""

    def ignored(padding_mask, kv_length, local_attention_size=None):
        return not masking_utils.is_tracing(padding_mask) and (padding_mask is None or padding_mask.all())

    monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", ignored)


@pytest.mark.parametrize("make", [bert, vit], ids=["text", "odd length"])
def test_recording_builds_no_mask(make, masks_of, of_before, monkeypatch):
    net, inputs = make()
    assert all(mask is not None for mask in masks_of(lambda: net(**inputs))), "as it is without our care"
    calls = {}
    real = execution_mode.call_in_mode
    monkeypatch.setattr(execution_mode, "_replay_graph", lambda call, *_, **__: calls.setdefault("recorded", call))
    monkeypatch.setattr(execution_mode, "call_in_mode", lambda *given: calls.setdefault(given[0], real(*given)))
    monkeypatch.setattr(execution_mode, "time_interleaved", lambda ready, **more: dict.fromkeys(ready, [1.0]))
    monkeypatch.setattr(execution_mode, "yield_gpu", lambda device: None)
    modes, cuda = ["cuda_graph"], torch.device("cuda")
    fastest_execution_mode(net, inputs, execution_modes=modes, device=cuda, dtype=torch.float32)
    assert masks_of(calls["recorded"]) == [None, None]


@pytest.mark.gpu
@pytest.mark.parametrize("make", [bert, vit], ids=["text", "odd length"])
@pytest.mark.parametrize("mode", ["cuda_graph", "compile_cuda_graph"])
def test_recorded_network_runs_fused_attention(make, mode):
    (net, inputs), cuda = make(), torch.device("cuda")
    net = net.half().to(cuda)
    inputs = {name: (value.half() if value.is_floating_point() else value).to(cuda) for name, value in inputs.items()}
    found = fastest_execution_mode(net, inputs, execution_modes=[mode], device=cuda, dtype=torch.float16)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        found.call()
        torch.cuda.synchronize()
    names = [event.key for event in profiled.key_averages()]
    assert any("flash" in name or "cudnn" in name for name in names) and not any("softmax" in name for name in names)


def test_empty_masks_are_left_out():
    net, inputs = bert(token_type_ids=torch.ones(2, 13, dtype=torch.long))
    assert [*without_full_masks(net, inputs, 1e-5)] == ["input_ids", "token_type_ids"]
    inputs["attention_mask"][1, 9:] = 0
    assert without_full_masks(net, inputs, 1e-5) == inputs

    class Ignores(nn.Module):
        """Its mask says what to leave out, as those of nn.Transformer."""

        def forward(self, x, ignored_mask=None):
            return x if ignored_mask is None else x.masked_fill(ignored_mask.bool(), 0.0)

    class Needs(nn.Module):
        def forward(self, x, mask=None):
            return x * mask

    ones = torch.ones(2, 3)
    for other, mask in ((Ignores(), "ignored_mask"), (Needs(), "mask")):
        assert [*without_full_masks(other, {"x": torch.randn(2, 3), mask: ones}, 1e-5)] == ["x", mask]


class Heads(nn.Module):
    """Values are narrower than queries, which no fused kernel of a CPU takes."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x[..., :4], attn_mask=torch.ones(5, 5, dtype=torch.bool))


def test_math_attention_is_named():
    x = torch.randn(2, 3, 5, 8)
    told = "1 of 1 attentions run in PyTorch's math path, which is slow: "
    told += "1 x float32 [2, 3, 5, 8] with a bool mask [5, 5] of strides [5, 1]"
    assert math_path_report(Heads(), {"x": x}) == told
    attention = torch.fx.symbolic_trace(Heads())
    for node in attention.graph.nodes:  # as graphs of blocks call it
        if node.target is F.scaled_dot_product_attention:
            node.target = torch.ops.aten.scaled_dot_product_attention.default
    attention.recompile()
    assert math_path_report(attention, {"x": x}) == told
    net, inputs = vit()
    assert math_path_report(net, inputs) is None


class Masked(nn.Module):
    """Attention without a mask, and attention with one."""

    def forward(self, x, mask):
        plain = F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(plain, x, value=x, attn_mask=mask)


def test_attentions_that_a_backend_takes(monkeypatch):
    without = explain_refusal(nn.Linear(4, 4), {"input": torch.randn(1, 4)}, "sdpa_flash")
    assert without == "the network calls no scaled_dot_product_attention"
    inputs = {"x": torch.randn(1, 2, 4, 8), "mask": torch.ones(1, 1, 4, 4, dtype=torch.bool)}
    answers = {"no masks": lambda call: call.attn_mask is None, "all": lambda call: True, "none": lambda call: False}
    reasons = {}
    for name, takes in answers.items():
        monkeypatch.setitem(SUPPORT_CHECKS, "sdpa_flash", takes)
        reasons[name] = explain_refusal(Masked(), inputs, "sdpa_flash")
    none = "takes no float32 attention of [1, 2, 4, 8] on this device"
    assert reasons == {"no masks": "takes no attention masks", "all": None, "none": none}
    assert SUPPORT_CHECKS.keys() == BACKENDS.keys()


class Seen(nn.Module):
    """Says which backends its forward pass may use."""

    def forward(self, x):
        self.flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        return F.scaled_dot_product_attention(x, x, x)


def test_backend_is_forced_in_the_forward():
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

    net, x = WithInput(SelfAttention(16, 2)).eval(), torch.randn(1, 4, 16)
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
