"""Text generated token by token with a static cache: what it computes, what is timed, and what is refused, on tiny networks."""

import copy

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.measure import decode
from sparsefront.measure.correctness import output_error
from sparsefront.measure.decode import Decoder, time_prefill
from sparsefront.models.linears import as_linears

EAGER = {"execution_modes": ["eager"], "variants": [], "samples": 5, "repeats": 1, "warmup": 1}
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**more):
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=96, **more)).eval()


def gpt2():
    config = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    net = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=96, **config)).eval()
    as_linears(net)
    return net


@pytest.fixture
def ids():
    return torch.randint(0, 61, (3, 14), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=[llama, gpt2])
def nets(request):
    """Dense, masked, and with kernels for single tokens."""
    torch.manual_seed(0)
    dense = request.param()
    net = copy.deepcopy(dense)
    one = {"input_ids": torch.zeros(3, 1, dtype=torch.long), "use_cache": False}
    masks = sf.prune(net, "tile_wise", 0.5, granularity=8, example_inputs=one, tell=len)
    masked = copy.deepcopy(net)
    report = sf.swap(net, masks, one, tell=len)
    assert report.sparse_flops_share > 0.5 and report.fusion.rewritten
    return dense, masked, net


def test_steps_give_the_whole_logits(nets, ids):
    _, masked, sparse = nets
    with torch.no_grad():
        whole = masked(input_ids=ids).logits
    for net in (masked, sparse):
        step = Decoder(net, ids[:, :6], 64).eval()
        torch.testing.assert_close(step.first, whole[:, 5], rtol=1e-4, atol=1e-5)
        for place in range(6, ids.shape[1]):
            with torch.inference_mode():
                logits, likeliest = step(ids[:, place : place + 1])
                assert torch.equal(step(ids[:, place : place + 1])[0], logits), "a call may be repeated"
            torch.testing.assert_close(logits, whole[:, place], rtol=1e-4, atol=1e-5)
            assert torch.equal(likeliest, whole[:, place].argmax(-1, keepdim=True))
            step.advance()


def test_prompt_that_fails_with_kernels(ids):
    class Failing(nn.Linear):
        def forward(self, input):
            raise RuntimeError("a kernel fails")

    net = llama()
    net.model.layers[0].mlp.up_proj.__class__ = Failing
    report = time_prefill(llama(), net, ids, sf.Measure(mode="decode", device="cpu", **EAGER))
    assert report.dense is not None and report.sparse is None
    assert report.not_timed == {"sparse": "RuntimeError: a kernel fails"}


def test_benchmark_tells_tokens_per_second(nets, ids, monkeypatch):
    dense, _, sparse = nets
    made = []
    monkeypatch.setattr(decode, "int8_unavailable_reason", lambda: None)
    monkeypatch.setattr(sf.inference.benchmark, "int8_weight_only", lambda net: made.append(net) or copy.deepcopy(net))
    settings = sf.Measure(mode="decode", dense_low=["int8_weight_only"], **EAGER)
    found = sf.benchmark(dense, sparse, {"input_ids": ids}, settings=settings, tell=len)
    assert made == [dense] and found.device == "cpu"
    assert found.tokens_per_s["sparse"] == pytest.approx(3 / found.sparse_ms * 1e3)
    assert list(found.tokens_per_s) == ["dense", "int8_weight_only", "sparse"]
    lines = str(found).splitlines()
    assert lines[-3].startswith("tokens/s: dense ") and lines[-2].startswith("prompt: dense ")
    assert lines[-1] == "on a CPU the reference kernels run: this says nothing about a GPU"
    assert found.prefill.sparse.median_ms > 0


class Plain(nn.Module):
    def forward(self, input_ids):
        return input_ids.float()


WRONG = {
    "a short cache": (
        llama,
        {"cache_length": 14},
        {},
        r"cache_length=14: is too short for 14 tokens and the next one: at least 15",
    ),
    "no decoder": (Plain, {}, {}, r"dense_net=Plain: generates no text token by token.*past_key_values"),
    "a mask": (llama, {}, {"attention_mask": torch.ones(3, 14)}, r"example_inputs=.*: is a prompt of whole rows"),
}


@pytest.mark.parametrize(("make", "settings", "more", "told"), WRONG.values(), ids=WRONG)
def test_network_that_cannot_generate(make, settings, more, told, ids):
    dense, net = make(), make()
    with pytest.raises(InvalidSetting, match=told) as error:
        sf.benchmark(dense, net, {"input_ids": ids} | more, settings=sf.Measure(mode="decode", **settings, **EAGER))
    assert "\n" not in str(error.value)


def test_full_cache_is_refused(ids):
    step = Decoder(llama(), ids, 15)
    with pytest.raises(InvalidSetting, match="too short for 15 tokens"):
        step.advance()
    mistral = MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=16)).eval()
    with pytest.raises(InvalidSetting, match=r"cache_length=64: is more than the 16 tokens"):
        Decoder(mistral, ids, 64)
    Decoder(mistral, ids, 16)
    with pytest.raises(InvalidSetting, match=r"example_inputs=float32 \[3, 14\]: is a prompt"):
        Decoder(llama(), ids.float(), 64)


SETTINGS = {
    "a cache without steps": ({"cache_length": 9}, r"cache_length=9: is of mode=decode"),
    "a short cache": ({"mode": "decode", "sequence_length": 64, "cache_length": 64}, r"cache_length=64: is too short"),
    "lengths of the data": ({"mode": "decode", "lengths": "dataset"}, r"lengths=dataset: times whole forwards"),
    "fp8 by steps": ({"mode": "decode", "dense_low": ["fp8"]}, r"dense_low=.*: is int8_weight_only or nothing"),
    "int8 weights of a forward": (
        {"dense_low": ["int8_weight_only"]},
        r"dense_low=.*int8_weight_only is of mode=decode: fp8, int8",
    ),
    "no rows": ({"mode": "decode", "batch_size": 0}, r"batch_size=0"),
}


@pytest.mark.parametrize(("given", "told"), SETTINGS.values(), ids=SETTINGS)
def test_settings_of_another_mode_are_refused(given, told):
    with pytest.raises(InvalidSetting, match=told):
        sf.Measure(**given)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 16])
def test_recorded_and_compiled_steps(batch, cuda="cuda", dtype=torch.float16):
    """With kernels for few rows, and a prompt that is longer than they take."""
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 512}
    dense = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False)).to(cuda, dtype).eval()
    ids = torch.randint(0, 61, (batch, 90), device=cuda)
    net = copy.deepcopy(dense)
    masks = sf.prune(net, "tile_wise", 0.75, granularity=64, example_inputs={"input_ids": ids}, tell=len)
    masked = copy.deepcopy(net)
    sf.swap(net, masks, {"input_ids": ids[:, :1]}, kernel="sparse", seconds=20, tell=len)
    step = Decoder(net, ids[:, :89], 128).eval()
    with torch.inference_mode():
        assert output_error(step(ids[:, 89:])[0], masked(input_ids=ids).logits[:, -1]) < 1e-2
    modes = ["cuda_graph", "compile_cuda_graph"] if cuda == "cuda" else ["eager"]
    settings = sf.Measure(mode="decode", execution_modes=modes, variants=[], samples=5, repeats=1)
    found = sf.benchmark(dense, net, {"input_ids": ids}, settings=settings, tell=len)
    assert not {*found.timed.not_timed} & {f"{side}/{mode}" for mode in modes for side in ("dense", "sparse")}
    assert (found.device == "cpu") == (cuda == "cpu") and found.tokens_per_s["sparse"] > 0
